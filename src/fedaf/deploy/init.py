"""``fedaf deploy init``: a folder for each machine, and a page that says what to do with them."""

import ipaddress
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.config.policies import policy_toml
from fedaf.data.entries import NO_DATA
from fedaf.deploy.credentials import (
    CA_CERTIFICATE,
    LOOPBACK,
    NODE_KEY,
    SERVER_CERTIFICATE,
    hosts_of,
    make_authority,
    make_node_key,
    make_server_certificate,
    private_directory,
)
from fedaf.deploy.machines import APP, FLOWER_HOME, LINK_FILE, NODE_FILE, toml_lines
from fedaf.deploy.pages import deployment_page, site_page
from fedaf.errors import UserError
from fedaf.federation.run_directory import CONFIG
from fedaf.protocol import Policy
from fedaf.transports.flower import OFFLINE, app_directory

SERVER, SITES, AUTHORITY, KEYS = "server", "sites", "authority", "keys"

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")


def trial_config(given: Mapping[str, Any]) -> Config:
    """A short run on digits that a default policy admits: of a class, no more images than half its samples."""
    merged = configuration.merge({"data": {"name": "digits"}, "partition": {"alpha": 0.5}}, given)
    config = configuration.build(merged, preset="quick")
    options = config.method.model_dump()
    if options.get("min_samples", 0) is not None:  # set, or of a method that does not condense
        return config
    fewest = {"method": {"name": config.method_name, "min_samples": 2 * options["ipc"]}}
    return configuration.build(configuration.merge(merged, fewest), preset="quick")


def check_names(server: str, sites: Sequence[str]) -> None:
    """Raise ``UserError`` for names that cannot be a server and its sites."""
    if not (_HOST.fullmatch(server) or _is_address(server)):
        raise UserError(f"--server is {server!r}, but it must be the server's name or address, without a port.")
    if not sites:
        raise UserError("--sites needs at least one name, for example --sites hospital-a,hospital-b.")
    for name in sites:
        if not _NAME.fullmatch(name):
            raise UserError(f"the site {name!r} cannot be a folder; allowed are letters, digits, '.' and '-'.")
    if len(set(sites)) < len(sites):
        raise UserError(f"--sites names {', '.join(sorted({n for n in sites if sites.count(n) > 1}))} twice.")


def _is_address(server: str) -> bool:
    try:
        ipaddress.ip_address(server)
    except ValueError:
        return False
    return True


def init(
    folder: Path,
    *,
    server: str,
    sites: Sequence[str],
    config: Config,
    port: int = 8000,
    host: str = "0.0.0.0",
    bring_certificates: bool = False,
) -> None:
    """Write all that a deployment needs into a new folder. ``server`` is the name or address under which sites reach
    the link, ``host`` the address it listens on."""
    check_names(server, sites)
    refuse_used(folder)
    private_directory(folder)
    ends = None if bring_certificates else _make_certificates(folder, server)
    trial = config.data.name != NO_DATA
    superlink = f"[{server}]:{port}" if ":" in server else f"{server}:{port}"
    _write_server(folder / SERVER, config, host=host, port=port)
    for number, name in enumerate(sites):
        site = private_directory(folder / SITES / name)
        public = make_node_key(site / NODE_KEY)
        shutil.copyfile(public, folder / SERVER / KEYS / f"{name}.pub")
        if not bring_certificates:
            shutil.copyfile(folder / AUTHORITY / CA_CERTIFICATE, site / CA_CERTIFICATE)
        _write_site(site, name, superlink, config, f"partition:{number}" if trial else "folder:images")
        (site / "README.md").write_text(site_page(name=name, server=server, port=port))
    page = deployment_page(
        server=server, port=port, sites=sites, ends=f"{ends:%Y-%m-%d}" if ends is not None else None, trial=trial
    )
    (folder / "README.md").write_text(page)


def refuse_used(folder: Path) -> None:
    """Raise ``UserError`` for a folder that holds anything."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is in use; choose a folder that is empty or not there yet.")


def renew(folder: Path) -> datetime:
    """A new certificate for the server of a deployment, for the same names. Returns when it ends."""
    certificate = folder / SERVER / SERVER_CERTIFICATE
    if not (folder / AUTHORITY).is_dir():
        raise UserError(f"{folder} has no {AUTHORITY}/, so its certificates were made elsewhere; renew them there.")
    return make_server_certificate(folder / AUTHORITY, folder / SERVER, hosts_of(certificate))


def _make_certificates(folder: Path, server: str) -> datetime:
    make_authority(folder / AUTHORITY)
    ends = make_server_certificate(folder / AUTHORITY, folder / SERVER, [server, *LOOPBACK])
    shutil.copyfile(folder / AUTHORITY / CA_CERTIFICATE, folder / SERVER / CA_CERTIFICATE)
    return ends


def _write_server(folder: Path, config: Config, *, host: str, port: int) -> None:
    private_directory(folder)
    (folder / KEYS).mkdir()
    shutil.copytree(app_directory(), folder / APP)
    (folder / LINK_FILE).write_text(toml_lines({"host": host, "port": port}))
    (folder / CONFIG).write_text(config.to_toml())
    exports = {**OFFLINE, "FLWR_HOME": f"$PWD/{FLOWER_HOME}"}
    (folder / "env.sh").write_text(
        "# To be read in this folder before flwr is used: . ./env.sh\n"
        + "".join(f'export {name}="{value}"\n' for name, value in exports.items())
    )


def _write_site(folder: Path, name: str, superlink: str, config: Config, data: str) -> None:
    node = {"client-id": name, "data": data, "policy": "policy.toml", "state-dir": "state"}
    (folder / NODE_FILE).write_text(
        f'{toml_lines({"superlink": superlink})}\n[node]\n{toml_lines(node)}# threads = 4\n# device = "cuda"\n'
    )
    (folder / "policy.toml").write_text(policy_toml(Policy(methods=[config.method_name])))
    (folder / CONFIG).write_text(config.to_toml())
