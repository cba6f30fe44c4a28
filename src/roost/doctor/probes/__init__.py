"""Child processes: each tries one thing and says how it went."""
