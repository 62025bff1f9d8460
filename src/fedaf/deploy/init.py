"""``fedaf deploy init``: a folder for each machine, and pages that say what to do with them."""

import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import tomli_w

from fedaf import config as configuration
from fedaf.common.version import __version__
from fedaf.config import Config
from fedaf.config.policies import policy_toml
from fedaf.data.spec import NO_DATA
from fedaf.deploy import credentials
from fedaf.deploy.credentials import CA_CERTIFICATE, NODE_KEY, SERVER_CERTIFICATE, private_directory
from fedaf.deploy.machines import APP, FLOWER_HOME, LINK_FILE, NODE_FILE
from fedaf.errors import UserError
from fedaf.federation.run_directory import CONFIG
from fedaf.protocol import Policy
from fedaf.runs.network import refuse_reference
from fedaf.transports.flower import OFFLINE, app_directory

SERVER, SITES, AUTHORITY, KEYS = "server", "sites", "authority", "keys"
POLICY, OWN_DATA = "policy.toml", "folder:images"

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")


def trial_config(given: Mapping[str, Any]) -> Config:
    """Return a short run on digits that the default policy admits.

    Args:
        given: Settings that replace those of the trial. Unless they set ``min_samples``, a client condenses only
            classes with at least twice as many samples as images per class, as the default policy demands.
    """
    merged = configuration.merge({"data": {"name": "digits"}, "partition": {"alpha": 0.5}}, given)
    config = configuration.build(merged, preset="quick")
    refuse_reference(config)
    options = config.method.model_dump()
    if options.get("min_samples", 0) is not None:  # set, or of a method that does not condense
        return config
    fewest = {"method": {"name": config.method_name, "min_samples": 2 * options["ipc"]}}
    return configuration.build(configuration.merge(merged, fewest), preset="quick")


def check_names(server: str, sites: Sequence[str]) -> None:
    """Raise ``UserError`` unless these are valid names of a server and its sites."""
    if not (_HOST.fullmatch(server) or credentials.is_address(server)):
        what = f"--server is {server!r}; expected a host name or an address, without a port."
        raise UserError(what, code="FEDAF-DEPLOY-SERVER-NAME")
    wrong = [repr(name) for name in sites if not _NAME.fullmatch(name)]
    wrong += sorted({f"{name} twice" for name in sites if sites.count(name) > 1})
    if wrong or not sites:
        what = f"--sites has {', '.join(wrong) or 'no names'}"
        expected = "expected different names of letters, digits, '.' and '-', for example hospital-a,hospital-b"
        raise UserError(f"{what}; {expected}.", code="FEDAF-DEPLOY-SITE-NAME")


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
    """Write the folders of all machines of a deployment.

    Args:
        folder: New folder for all of them.
        server: Host name or address under which sites reach the server.
        sites: Names of the sites.
        config: The configuration to run.
        port: Port of the link.
        host: Address that the link listens on.
        bring_certificates: Create no certificates; the page then says which files to add.

    Raises:
        UserError: If a name is not valid, the folder is in use, or the method is for one process only.
    """
    refuse_reference(config)
    check_names(server, sites)
    refuse_used(folder)
    private_directory(folder)
    expires = None
    if not bring_certificates:
        credentials.make_authority(folder / AUTHORITY)
        expires = credentials.make_server_certificate(folder / AUTHORITY, folder / SERVER, [server])
        shutil.copyfile(folder / AUTHORITY / CA_CERTIFICATE, folder / SERVER / CA_CERTIFICATE)
    trial = config.data.name != NO_DATA
    values = {
        "version": __version__,
        "server": server,
        "port": port,
        "sites": sites,
        "expires": f"{expires:%Y-%m-%d}" if expires is not None else None,
        "trial": trial,
        "rounds": config.run.rounds,
        "check": f"fedaf policy check {CONFIG} --policy {POLICY}" + ("" if trial else f" --dataset {OWN_DATA}"),
    }
    superlink = f"[{server}]:{port}" if ":" in server else f"{server}:{port}"
    _write_server(folder / SERVER, config, host=host, port=port)
    for number, name in enumerate(sites):
        site = private_directory(folder / SITES / name)
        public = credentials.make_node_key(site / NODE_KEY)
        shutil.copyfile(public, folder / SERVER / KEYS / f"{name}.pub")
        if not bring_certificates:
            shutil.copyfile(folder / AUTHORITY / CA_CERTIFICATE, site / CA_CERTIFICATE)
        _write_site(site, name, superlink, config, f"partition:{number}" if trial else OWN_DATA)
        _write_page(site, "site.md.j2", {**values, "name": name})
    _write_page(folder, "deployment.md.j2", values)


def refuse_used(folder: Path) -> None:
    """Raise ``UserError`` if a folder is not empty, or is a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = f"{folder} is not empty; choose a folder that is empty or does not exist."
        raise UserError(what, code="FEDAF-DEPLOY-FOLDER-USED")


def renew(folder: Path) -> datetime:
    """Replace the server certificate of a deployment by a new one for the same host names.

    Args:
        folder: The folder that ``init`` wrote.

    Returns:
        When the new certificate expires.

    Raises:
        UserError: If the deployment has no certificate authority, or its files cannot be read.
    """
    if not (folder / AUTHORITY).is_dir():
        what = f"{folder} has no {AUTHORITY}/, so another authority signed its certificates; renew them there."
        raise UserError(what, code="FEDAF-DEPLOY-AUTHORITY-EXTERNAL")
    hosts = credentials.hosts_of(folder / SERVER / SERVER_CERTIFICATE)
    return credentials.make_server_certificate(folder / AUTHORITY, folder / SERVER, hosts)


def _write_page(folder: Path, template: str, values: Mapping[str, object]) -> None:
    """Write ``README.md`` into a folder."""
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("fedaf.deploy"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    (folder / "README.md").write_text(pages.get_template(template).render(values))


def _write_server(folder: Path, config: Config, *, host: str, port: int) -> None:
    private_directory(folder)
    (folder / KEYS).mkdir()
    shutil.copytree(app_directory(), folder / APP)
    (folder / LINK_FILE).write_text(tomli_w.dumps({"host": host, "port": port}))
    (folder / CONFIG).write_text(config.to_toml())
    exports = {**OFFLINE, "FLWR_HOME": f"$PWD/{FLOWER_HOME}"}
    (folder / "env.sh").write_text(
        "# Settings for flwr commands; run in this folder: . ./env.sh\n"
        + "".join(f'export {name}="{value}"\n' for name, value in exports.items())
    )


def _write_site(folder: Path, name: str, superlink: str, config: Config, data: str) -> None:
    node = {"client-id": name, "data": data, "policy": POLICY, "state-dir": "state"}
    settings = tomli_w.dumps({"superlink": superlink, "node": node})
    (folder / NODE_FILE).write_text(f'{settings}# threads = 4\n# device = "cuda"\n')
    (folder / POLICY).write_text(policy_toml(Policy(methods=[config.method_name])))
    (folder / CONFIG).write_text(config.untracked().to_toml())
