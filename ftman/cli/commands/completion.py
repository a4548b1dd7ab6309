"""`ft completion SHELL`: a script for the shell; what it asks is answered in complete.py."""

from __future__ import annotations

import argparse

from ftman.cli.session import Session

BASH = r"""# Use: source <(ft completion bash)     or put that line into ~/.bashrc
_ft() {
    local line="${COMP_LINE:0:COMP_POINT}" cur="" before=""
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *" " ]] && words+=("")
    cur="${words[${#words[@]}-1]}"
    local IFS=$'\n'
    COMPREPLY=($(ft __complete "${words[@]:1}" 2>/dev/null))
    # readline takes a colon for the end of a word: give only what follows the last one
    if [[ "$cur" == *:* ]]; then
        before="${cur%"${cur##*:}"}"
        COMPREPLY=("${COMPREPLY[@]#"$before"}")
    fi
}
complete -o default -F _ft ft
"""
ZSH = r"""#compdef ft
# Use: source <(ft completion zsh)     or save it as _ft in a folder of $fpath
_ft() {
    local -a found
    found=("${(@f)$(ft __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then compadd -- $found; else _files; fi
}
(( $+functions[compdef] )) && compdef _ft ft
"""
FISH = r"""# Use: ft completion fish | source     or save it in ~/.config/fish/completions/ft.fish
function __ft_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    ft __complete $words[2..-1] "$current" 2>/dev/null
end
complete -c ft -a '(__ft_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the script."""
    session.out.data(SCRIPTS[args.shell], end="")
    return 0
