"""What makes samples: one protocol, and an engine for each library that decodes."""
