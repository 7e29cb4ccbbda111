"""The ordering checker: happens-before with scopes, proxies, aliases and tcgen05 fences."""
