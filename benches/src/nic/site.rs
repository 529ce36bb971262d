//! A host behind a slow line: a registry far away, the NIC that all traffic passes, and machines.
//!
//! ```text
//! registry ── proxy (40 ms) ── 100 Mbit/s ── NIC: nicfetch, docker-registry ── VM, VM, …
//! ```
//!
//! Each is a network of its own. The line's rate is a token bucket; the delay is the proxy's, for
//! each request, because this kernel may have no other. Machines reach the registry through the
//! NIC, which passes their packets on, so that a direct pull takes the same line.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mirror::testing::FaultProxy;

use super::network::{End, Network, link};
use super::registry::Registry;
use super::service::{Nicfetch, Server, admin_at};
use crate::containers::engine::Docker;
use crate::process::run_ok;

/// What the line carries, and how far away the registry is.
const RATE: &str = "100mbit";
const DELAY: Duration = Duration::from_millis(40);
/// Addresses. Ports are free, for nobody else is in these networks.
const FAR: &str = "10.9.0.1";
const NIC_OUTSIDE: &str = "10.9.0.2";
const NIC: &str = "10.8.0.1";
const REGISTRY_PORT: u16 = 4999;
const PROXY_PORT: u16 = 5000;
const MIRROR_PORT: u16 = 5050;
const PEER_PORT: u16 = 5001;
const NEAR_PORT: u16 = 5002;
const BLOCKS_PORT: u16 = 7400;
/// Where the registry has what it serves.
const FAR_DIR: &str = "far";
/// Pushing the image.
const PUSH_DEADLINE: Duration = Duration::from_secs(300);
/// What the image is called.
pub const IMAGE: &str = "python";

/// All of it.
#[derive(Debug)]
pub struct Site {
    proxy: FaultProxy,
    _registry: Registry,
    // Networks go when nobody is in them any more.
    far: Network,
    nic: Network,
    home: PathBuf,
    /// Bytes of all blobs of the image.
    image_bytes: u64,
}

impl Site {
    /// Builds it in the directory `home`, with the image of the OCI layout `layout`.
    ///
    /// # Errors
    /// If a right or a program is missing.
    pub fn build(home: &Path, layout: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(home).with_context(|| format!("making {}", home.display()))?;
        let (far, nic) = (Network::new()?, Network::new()?);
        let end = |network, device, address| End {
            network,
            device,
            address: Some(address),
        };
        link(
            end(&far, "line", &format!("{FAR}/24")),
            end(&nic, "outside", &format!("{NIC_OUTSIDE}/24")),
        )?;
        nic.set("ip link add machines type bridge")?;
        nic.set(&format!("ip address add {NIC}/16 dev machines"))?;
        nic.set("ip link set machines up")?;
        nic.forward()?;
        far.default_route(NIC_OUTSIDE.parse::<IpAddr>().context("an address")?)?;
        let address = SocketAddr::from(([127, 0, 0, 1], REGISTRY_PORT));
        let command = far.command("docker-registry");
        let registry =
            far.inside(|| Registry::start(command, &home.join(FAR_DIR), address, None))?;
        push(&far, layout, address)?;
        let proxy = far.inside(|| {
            let listener = std::net::TcpListener::bind((FAR, PROXY_PORT));
            let listener = listener.context("listening for the NIC")?;
            FaultProxy::start_on(listener, address).context("starting the proxy")
        })?;
        let site = Self {
            proxy,
            _registry: registry,
            far,
            nic,
            home: home.to_owned(),
            image_bytes: image_bytes(layout)?,
        };
        site.slow_down()?;
        Ok(site)
    }

    /// Makes the line slow, in both directions, and long.
    fn slow_down(&self) -> anyhow::Result<()> {
        for (network, device) in [(&self.far, "line"), (&self.nic, "outside")] {
            // The queue holds what a window of TCP may have on its way: nothing is dropped.
            network.set(&format!(
                "tc qdisc add dev {device} root tbf rate {RATE} burst 128k limit 8m"
            ))?;
        }
        self.proxy.shape(DELAY, None);
        Ok(())
    }

    /// Returns the bytes of all blobs of the image.
    #[must_use]
    pub const fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Returns the directory of the site.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the network of the NIC.
    #[must_use]
    pub const fn nic(&self) -> &Network {
        &self.nic
    }

    /// Forgets what came over the line.
    pub fn forget(&self) {
        self.proxy.forget();
    }

    /// Returns the bytes of blobs that came over the line since it was forgotten.
    #[must_use]
    pub fn upstream_bytes(&self) -> u64 {
        self.proxy.body_bytes("/blobs/")
    }

    /// Returns the registry's URL, as the NIC and the machines know it.
    #[must_use]
    pub fn registry_url(&self) -> String {
        format!("http://{FAR}:{PROXY_PORT}")
    }

    /// Returns nicfetch's URL.
    #[must_use]
    pub fn nicfetch_url(&self) -> String {
        format!("http://{NIC}:{MIRROR_PORT}")
    }

    /// Returns the URL of docker-registry as a proxy.
    #[must_use]
    pub fn peer_url(&self) -> String {
        format!("http://{NIC}:{PEER_PORT}")
    }

    /// Returns the URL of the registry when it is on the NIC.
    #[must_use]
    pub fn near_url(&self) -> String {
        format!("http://{NIC}:{NEAR_PORT}")
    }

    /// Starts a registry on the NIC that serves the image from the far one's directory: no pull
    /// through a cache there is quicker than one from files that lie there already.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_near(&self) -> anyhow::Result<Registry> {
        let dir = self.home.join("near-registry");
        clear(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let data = self.home.join(FAR_DIR).join("data");
        std::os::unix::fs::symlink(data, dir.join("data"))
            .context("sharing the registry's data")?;
        let address = SocketAddr::new(NIC.parse().context("an address")?, NEAR_PORT);
        let command = self.nic.command("docker-registry");
        let start = || Registry::start(command, &dir, address, None);
        self.nic.inside(start)
    }

    /// Starts nicfetch on the NIC with a new store, and more flags.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_nicfetch(&self, nicfetch: &Nicfetch, flags: &[&str]) -> anyhow::Result<Server> {
        let store = self.home.join("mirror");
        clear(&store)?;
        let program = nicfetch.program().display().to_string();
        let mut command = self.nic.command(&program);
        command.args(["serve", "--upstream", &self.registry_url()]);
        command.args(["--listen", &format!("{NIC}:{MIRROR_PORT}")]);
        command.args(["--admin", &admin_at(&store)]);
        command.arg("--store").arg(&store).args(flags);
        Server::start(command, &["clients", "admin"], &store)
    }

    /// Serves a store's blocks on the NIC; returns the server, and where machines find it.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_blocks(
        &self,
        nicfetch: &Nicfetch,
        store: &Path,
    ) -> anyhow::Result<(Server, String)> {
        let address = format!("{NIC}:{BLOCKS_PORT}");
        let start = || nicfetch.serve_blocks(store, &address, &["--blocks-open"]);
        let server = self.nic.inside(start)?;
        Ok((server, address))
    }

    /// Starts docker-registry on the NIC, with a new store, as a proxy of the registry.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn start_peer(&self) -> anyhow::Result<Registry> {
        let dir = self.home.join("peer");
        clear(&dir)?;
        let address = SocketAddr::new(NIC.parse().context("an address")?, PEER_PORT);
        let (command, url) = (self.nic.command("docker-registry"), self.registry_url());
        let start = || Registry::start(command, &dir, address, Some(&url));
        self.nic.inside(start)
    }

    /// Adds a machine, the one of this number, which is not 0 and at most 250.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn machine(&self, number: u8) -> anyhow::Result<Network> {
        ensure!((1..=250).contains(&number), "there is no machine {number}");
        let machine = Network::new()?;
        let device = format!("vm{number}");
        let address = format!("10.8.1.{number}/16");
        let at_nic = End {
            network: &self.nic,
            device: &device,
            address: None,
        };
        let at_machine = End {
            network: &machine,
            device: "eth0",
            address: Some(&address),
        };
        link(at_nic, at_machine)?;
        self.nic
            .set(&format!("ip link set {device} master machines"))?;
        machine.default_route(NIC.parse::<IpAddr>().context("an address")?)?;
        Ok(machine)
    }

    /// Starts an engine on a machine, which asks `mirror`, a URL, for images of Docker Hub.
    ///
    /// # Errors
    /// If it does not come up.
    pub fn engine(&self, machine: &Network, name: &str, mirror: &str) -> anyhow::Result<Docker> {
        let mut command = machine.command("dockerd");
        command.args(["--registry-mirror", mirror]);
        command.args(["--insecure-registry", "10.8.0.0/15"]);
        let home = self.home.join(name);
        Docker::start_by(command, &home.join("data"), &home.join("engine"))
    }
}

/// Removes a directory that there may be.
fn clear(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn push(far: &Network, layout: &Path, to: SocketAddr) -> anyhow::Result<()> {
    let mut skopeo = far.command("skopeo");
    skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
    skopeo.arg(format!("oci:{}:{IMAGE}", layout.display()));
    skopeo.arg(format!("docker://{to}/library/{IMAGE}:latest"));
    run_ok(skopeo, PUSH_DEADLINE)
        .map(drop)
        .context("pushing the image")
}

/// Returns the bytes of an image's configuration and layers.
fn image_bytes(layout: &Path) -> anyhow::Result<u64> {
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["inspect", "--raw"]);
    skopeo.arg(format!("oci:{}:{IMAGE}", layout.display()));
    let manifest = run_ok(skopeo, PUSH_DEADLINE)?.output;
    let manifest: serde_json::Value =
        serde_json::from_str(&manifest).context("reading the image's manifest")?;
    let layers = manifest["layers"].as_array().context("it has no layers")?;
    let blobs = layers.iter().chain([&manifest["config"]]);
    blobs
        .map(|blob| blob["size"].as_u64().context("a blob has no size"))
        .sum()
}
