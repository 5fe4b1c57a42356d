"""`caesura engine`: run the shared engine, or start it. Clients wait until it runs, so this imports no client code at
first."""

import argparse
import asyncio
import logging
import os
from dataclasses import replace

from caesura import logs
from caesura.commands import CommandFailed, draft


def run(options: argparse.Namespace) -> None:
    draft(options.draft)
    if options.quantise:
        os.environ["CAESURA_QUANTISE"] = options.quantise  # read by the process that loads the model
    if options.foreground or options.listen:
        _serve(options)
    else:
        print(asyncio.run(_start(options)))


def _serve(options: argparse.Namespace) -> None:
    from caesura.engine.supervisor import clients, supervisor

    logs.begin(logging.INFO, "%(asctime)s %(levelname)s %(message)s")
    try:
        settings = replace(supervisor.SupervisorSettings.from_environment(), listen=options.listen or "")
        supervisor.serve(options.model, options.device, settings=settings)
    except supervisor.AlreadyRunning as error:
        raise CommandFailed(f"{error}{' Run `caesura stop` and try again.' if options.listen else ''}") from error
    except clients.CannotListen as error:
        raise CommandFailed(str(error)) from error


async def _start(options: argparse.Namespace) -> str:
    from caesura.commands.common import shared

    async with shared(options) as (found, welcome):
        return f"The engine is ready: {welcome.model} on {welcome.device}, process {(await found.status()).pid}."
