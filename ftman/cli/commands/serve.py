"""`ft serve`: the manager in the foreground."""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace

from ftman import log
from ftman.cli.session import Session
from ftman.config import load_config
from ftman.folders import require_folders


def run(args: argparse.Namespace, session: Session) -> int:
    """Run the manager until it is told to stop."""
    gc.disable()  # until everything is loaded, see ftman.memory.settle: nothing of it is garbage
    # The gateway and all below it are loaded only here: every other verb is a client.
    from ftman.gateway.app import serve

    config = session.config
    if args.address:
        asked = load_config({"FT_HOST": args.address, "FT_HOME": str(config.paths.home)})
        config = replace(config, host=asked.host, port=asked.port)
    require_folders(config)
    log.configure(debug=config.debug)
    return serve(config, insecure_no_key=args.insecure_no_key)
