"""What has been computed already: pages, states, prefixes. Read README.md, then policy/."""
