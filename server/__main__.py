"""`strata-server`: read the flags, start the engine, then load the rest while the engine loads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from .flags import UsageError, parse


def main() -> None:
    """Entry point of the `strata-server` command."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until stopped; returns the exit code (0 stopped, 1 cannot serve, 2 wrong usage).

    `simulate` as the first word runs the scheduler on a virtual clock instead.
    """
    if list(argv[:1]) == ["simulate"]:
        from strata_plugin.scheduling import simulate_cli

        return simulate_cli.main(list(argv[1:]))
    from .model_file import ModelFileError

    try:
        return _run(argv, environ)
    except (KeyboardInterrupt, BrokenPipeError):  # before serving; `Life` handles signals after
        return 0
    except UsageError as error:
        return _complain(error, 2)
    except ModelFileError as error:
        return _complain(error, 1)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    parsed = parse(argv, environ)
    for action in ("help", "version", "cache_list", "list_devices"):
        if parsed[action]:
            from . import information

            return information.show(action, environ)

    from . import logs
    from .model_file import ModelFile, choose_model, remote_source
    from .options import engine_config, server_settings
    from .sockets import AddressError, bind_all

    if remote_source(parsed):  # other mistakes are told before, not after an hour of downloading
        unknown = ModelFile("", "")
        engine_config(parsed, unknown, server_settings(parsed, unknown), environ)
    model = choose_model(parsed, environ)
    settings = server_settings(parsed, model)
    config = engine_config(parsed, model, settings, environ)
    for warning in parsed.warnings:
        print(f"strata-server: {warning}", file=sys.stderr)
    try:
        logs.set_up(settings)
    except OSError as error:
        return _complain(UsageError(f"--log-file: {error}"), 1)
    if settings.ssl_cert_file:
        from . import tls

        try:
            tls.check_pair(settings.ssl_cert_file, settings.ssl_key_file)
        except tls.TlsError as error:
            return _complain(error, 1)
    scheme = "https" if settings.ssl_cert_file else "http"
    try:
        listeners = bind_all(settings.hosts, settings.port, settings.reuse_port, scheme)
    except AddressError as error:
        return _complain(error, 1)

    from strata_plugin.engine.client import EngineClient

    engine = EngineClient(config, hang_s=parsed["engine_hang_s"])
    engine.spawn()  # before the web framework is imported: both take their time side by side

    from .serving import serve

    return serve(settings, config, engine, listeners)


def _complain(error: Exception, code: int) -> int:
    print(f"strata-server: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
