"""What a run needs, computed before anything is loaded. Imports neither torch nor transformers."""
