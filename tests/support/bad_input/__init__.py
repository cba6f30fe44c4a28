"""What people get wrong, by what they get wrong, each with what its one error must say."""
