"""What we know: live endpoints from files, DNS and Kubernetes."""
