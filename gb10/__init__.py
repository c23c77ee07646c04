"""gb10-gitops: deploy, try and restore one vLLM node from one variables file."""
