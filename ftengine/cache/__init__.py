"""What has been computed already: KV pages. Read README.md, then policy/pages.py."""
