"""Reading captured text: pure functions, one module a source."""
