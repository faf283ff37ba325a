"""What we know: live endpoints from files, DNS and Kubernetes, and the proxies kept in step."""
