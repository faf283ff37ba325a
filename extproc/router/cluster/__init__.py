"""Where endpoints come from: static lists, files, DNS and Kubernetes, followed as they change."""
