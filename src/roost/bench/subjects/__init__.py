"""What each contender does in its process: a module each, with a function that serves a job."""
