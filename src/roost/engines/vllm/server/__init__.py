"""The process that serves one vLLM engine to a trainer over HTTP. Importing imports no vLLM."""
