"""An interpreter of Go's text/template language; read evaluate.py first."""
