#!/usr/bin/env bash
# Three hospitals train one model over a network, on one machine: real processes, TLS, registered keys, a policy each.
#
#     pip install -c constraints.txt '.[flower]'
#     examples/three_hospitals.sh              # in a temporary folder
#     examples/three_hospitals.sh hospitals    # in a new folder that stays
#
# Each folder under deployment/ stands for a machine. On real machines the commands are the same (docs/howto/deploy.md).
# ROUNDS and STEPS make the run longer or shorter. The script stops everything that it starts, also after Ctrl-C.
set -euo pipefail
for program in fedaf flwr python3; do
    if ! command -v "$program" > /dev/null; then
        echo "$program is not on the PATH; activate the environment of fedaf" >&2
        exit 2
    fi
done
folder=${1:-}
if [ -z "$folder" ]; then
    folder=$(mktemp -d)
    temporary=$folder
elif [ -e "$folder" ]; then
    echo "$folder exists; name a new folder" >&2
    exit 2
fi
mkdir -p "$folder"
cd "$folder"

clean_up() {
    trap - EXIT
    kill $(jobs -p) 2> /dev/null || true
    wait || true
    [ -z "${temporary:-}" ] || rm -rf "$temporary"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "== 1. The task: what all agree on. The server has no images."
cat > run.toml << TOML
[data]
name = "none"
shape = [1, 8, 8]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]

[run]
rounds = ${ROUNDS:-2}
threads = 1
device = "cpu"

[model]
width = 32

[federation]
min_clients = 3

[method]
name = "fedaf"
ipc = 5
min_samples = 20
local_steps = ${STEPS:-40}
real_batch = 32
server_epochs = 30
server_batch = 32
server_lr = 0.01
TOML

echo "== 2. A folder for each machine: certificates, keys, settings, a policy"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
fedaf deploy init deployment --server 127.0.0.1 --port "$port" --config run.toml \
    --sites hospital-a,hospital-b,hospital-c
printf 'host = "127.0.0.1"\nport = %s\n' "$port" > deployment/server/link.toml # other machines cannot connect

echo "== 3. Each hospital has its own images, in one folder per class, and not every class"
python3 - << 'PYTHON'
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
held = {"hospital-a": "01234", "hospital-b": "34567", "hospital-c": "567890"}
for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
    owners = [name for name, classes in held.items() if str(label) in classes]
    folder = Path("deployment/sites", owners[number % len(owners)], "images", str(label))
    if number >= len(digits.target) - 20:
        folder = Path("new-patients")  # nobody trains on these
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 255 / 16).astype("uint8")).save(folder / f"{number}-is-{label}.png")
PYTHON
for site in deployment/sites/*; do
    echo "$(basename "$site"): $(find "$site/images" -name '*.png' | wc -l) images of $(ls "$site/images" | tr '\n' ' ')"
done

echo "== 4. Each hospital sets limits, and checks what the run would disclose"
set_limit() { # SITE LIMIT VALUE
    local policy=deployment/sites/$1/policy.toml
    sed "s/^#* *$2 =.*/$2 = $3/" "$policy" > policy.tmp
    mv policy.tmp "$policy"
}
set_limit hospital-b min_local_steps 20
set_limit hospital-c max_images 200
for name in hospital-a hospital-b hospital-c; do
    (cd "deployment/sites/$name" && fedaf policy check config.toml --policy policy.toml --dataset folder:images)
done

echo "== 5. The server starts the link and registers the keys of the hospitals; the hospitals start their nodes"
(cd deployment/server && exec fedaf deploy link) &
for _ in $(seq 120); do
    grep -qs "Uvicorn running" deployment/server/logs/link.log && break
    sleep 1
done
(
    cd deployment/server
    . ./env.sh
    for key in keys/*.pub; do flwr supernode register "$key" link; done
)
for name in hospital-a hospital-b hospital-c; do
    (cd "deployment/sites/$name" && exec fedaf deploy node) &
done

echo "== 6. The run: images stay where they are, only condensed images and class-wise knowledge travel"
(cd deployment/server && exec fedaf deploy run) &
wait $! # unlike a command in the foreground, this lets a signal through at once

echo "== 7. The model classifies images of new patients"
fedaf predict deployment/server/run new-patients
