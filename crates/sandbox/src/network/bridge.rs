//! The bridge of sandboxes that have a network of their own, and the veth devices on it.
//!
//! Each sandbox has an address, and a device `eth0` whose other end is a port of the bridge. The ports are isolated:
//! the kernel passes nothing from one to another, only to and from the machine, which has the first address. No
//! process in a sandbox has the right to change its device, its address or its routes, nor to send frames of its
//! own making. Forwarding and translating addresses is left to the machine's administrator: this changes nothing
//! but devices of its own.
//!
//! The kernel removes both ends of a veth device with the namespace of either, so a sandbox whose manager was
//! killed leaves none. The bridge stays until the next program; its alias says whose it is.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute,
    LinkInfo, LinkMessage,
};

use super::link::{Netlink, alias_of, bridge_of, name_of, named, raised};
use super::subnet::{LINK_LOCAL, Subnet, hardware_address};
use super::{enter_made, enter_new, guard, on_a_thread};
use crate::error::{Result, SandboxError, step};

/// The longest name of a bridge. A port has it, too, and an address's last bytes; the kernel takes 15.
const NAME_MAX_BYTES: usize = 9;

/// The longest alias of a device (`IFALIASZ`, without the zero).
const ALIAS_MAX_BYTES: usize = 255;

/// The device of a sandbox.
const DEVICE: &str = "eth0";

/// Whether sandboxes reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Neighbours {
    /// Each reaches the machine, and what the machine forwards to.
    #[default]
    Apart,
    /// All sandboxes of the bridge reach each other, too.
    Reachable,
}

/// The bridge of the sandboxes that have a network of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// The name of the device: at most nine lower-case letters and digits, a letter first.
    pub name: String,
    /// The addresses.
    pub subnet: Subnet,
    /// Whether sandboxes reach each other.
    pub neighbours: Neighbours,
}

impl BridgeConfig {
    fn check(&self) -> Result<()> {
        let name = self.name.as_bytes();
        let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let begins = name.first().is_some_and(u8::is_ascii_lowercase);
        if begins && name.len() <= NAME_MAX_BYTES && name.iter().all(is_plain) {
            return Ok(());
        }
        Err(SandboxError::Invalid(format!(
            "{:?} is no name for a bridge: it has at most {NAME_MAX_BYTES} lower-case letters and digits, and begins \
             with a letter",
            self.name
        )))
    }

    /// What is written to the device, so that another program, or this one with other settings, knows it.
    fn alias(&self, run_dir: &Path) -> String {
        let Self {
            subnet, neighbours, ..
        } = self;
        format!("{} {subnet} {neighbours:?}", alias_of_all(run_dir))
    }
}

/// How the alias of every bridge of a directory begins.
fn alias_of_all(run_dir: &Path) -> String {
    format!("sandboxes of {}", run_dir.display())
}

/// A bridge that is up.
#[derive(Debug)]
pub(super) struct Bridge {
    config: BridgeConfig,
    index: u32,
}

/// Opens the bridge, or makes it. Removes former bridges of the same directory, unless sandboxes run on them, and
/// ports that belong to none of the addresses in `used`.
pub(super) fn open(
    config: Option<&BridgeConfig>,
    run_dir: &Path,
    used: &[Ipv4Addr],
) -> Result<Option<Bridge>> {
    let mut netlink = Netlink::open().map_err(step("asking for network devices"))?;
    let all = netlink.list().map_err(step("listing network devices"))?;
    let alias = config.map(|config| config.alias(run_dir));
    if let Some(alias) = alias.as_ref().filter(|alias| alias.len() > ALIAS_MAX_BYTES) {
        return Err(SandboxError::Invalid(format!(
            "{} is too long to be written to a network device, which takes {ALIAS_MAX_BYTES} bytes of {alias:?}: \
             choose a shorter `run_dir`",
            run_dir.display()
        )));
    }
    let prefix = alias_of_all(run_dir) + " ";
    let mut same = None;
    for former in &all {
        let is_ours = |alias: &&str| alias.starts_with(&prefix);
        let (Some(name), Some(former_alias)) = (name_of(former), alias_of(former).filter(is_ours))
        else {
            continue;
        };
        let ports_left = remove_ports(&mut netlink, &all, former, used)?;
        let is_same = config.is_some_and(|config| config.name == name);
        if is_same && alias.as_deref() == Some(former_alias) {
            same = Some(former.header.index);
        } else if ports_left == 0 {
            remove(&mut netlink, name)?;
        } else if is_same {
            return Err(SandboxError::Invalid(format!(
                "{ports_left} sandboxes run on the bridge {name} with other settings ({former_alias}): end them, or \
                 keep the former `subnet`"
            )));
        }
    }
    let Some((config, alias)) = config.zip(alias) else {
        return Ok(None);
    };
    config.check()?;
    let index = match same {
        Some(index) => index,
        None => make_bridge(&mut netlink, config, &alias)?,
    };
    Ok(Some(Bridge {
        config: config.clone(),
        index,
    }))
}

/// Removes the ports of a bridge that no running sandbox has. Returns how many are left.
fn remove_ports(
    netlink: &mut Netlink,
    all: &[LinkMessage],
    bridge: &LinkMessage,
    used: &[Ipv4Addr],
) -> Result<usize> {
    let bridge_name = name_of(bridge).unwrap_or_default();
    let used: Vec<_> = used.iter().map(|ip| port_name(bridge_name, *ip)).collect();
    let ports = all
        .iter()
        .filter(|link| bridge_of(link) == Some(bridge.header.index))
        .filter_map(name_of);
    let mut left = 0;
    for port in ports {
        match used.iter().any(|name| name == port) {
            true => left += 1,
            false => remove(netlink, port)?,
        }
    }
    Ok(left)
}

fn remove(netlink: &mut Netlink, name: &str) -> Result<()> {
    netlink
        .remove(name)
        .map_err(step("removing a network device"))
}

fn make_bridge(netlink: &mut Netlink, config: &BridgeConfig, alias: &str) -> Result<u32> {
    let name = &config.name;
    if let Some(other) = netlink
        .find(name)
        .map_err(step("looking for a network device"))?
    {
        let whose = alias_of(&other).unwrap_or("it has no alias");
        return Err(SandboxError::Invalid(format!(
            "there is a network device {name} of another program already ({whose}): choose another name, `bridge`"
        )));
    }
    let doing = step("making a bridge");
    let gateway = config.subnet.gateway();
    let mut bridge = named(name);
    bridge.attributes.extend([
        // Otherwise it has the least of its ports', and changes with them.
        LinkAttribute::Address(hardware_address(gateway).to_vec()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
    ]);
    let made = netlink.make(bridge).and_then(|()| {
        let mut told = named(name);
        told.attributes
            .push(LinkAttribute::IfAlias(alias.to_owned()));
        netlink.change(told)?;
        be_strict(name)?;
        netlink.change(raised(named(name)))?;
        let index = netlink.index_of(name)?;
        let subnet = config.subnet;
        netlink.add_address(index, gateway, subnet.prefix(), subnet.broadcast())?;
        Ok(index)
    });
    if made.is_err() {
        remove(netlink, name)?;
    }
    made.map_err(doing)
}

/// Has the machine take packets of a bridge only from its subnet, and none that name their own way; and use no
/// IPv6 there.
fn be_strict(name: &str) -> std::io::Result<()> {
    let of = |name: &str, setting: &str| format!("/proc/sys/net/ipv4/conf/{name}/{setting}");
    fs::write(of(name, "rp_filter"), "1")?;
    fs::write(of(name, "accept_source_route"), "0")?;
    fs::write(of(name, "send_redirects"), "0")?;
    without_ipv6(name)
}

/// Has a device of the calling thread's namespace, or `all`, use no IPv6.
fn without_ipv6(name: &str) -> std::io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1") {
        // A kernel without it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// The port of an address. The subnet gives the rest of it.
fn port_name(bridge: &str, address: Ipv4Addr) -> String {
    format!("{bridge}-{:04x}", address.to_bits() & 0xffff)
}

impl Bridge {
    pub(super) fn config(&self) -> &BridgeConfig {
        &self.config
    }

    /// Makes a namespace that has an address on the bridge.
    pub(super) fn make_port(&self, address: Ipv4Addr) -> Result<OwnedFd> {
        self.connect(address, enter_new, None)
    }

    /// Gives a namespace an address on the bridge. Others may have rights there, so the port takes only what is its own.
    pub(super) fn make_guarded_port(
        &self,
        address: Ipv4Addr,
        namespace: OwnedFd,
    ) -> Result<OwnedFd> {
        let guard = guard::program(address).map_err(step("filtering a network device"))?;
        self.connect(address, || enter_made(namespace), Some(guard.as_fd()))
    }

    fn connect(
        &self,
        address: Ipv4Addr,
        enter: impl FnOnce() -> Result<OwnedFd> + Send,
        guard: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd> {
        let mut machine = Netlink::open().map_err(step("asking for network devices"))?;
        let name = port_name(&self.config.name, address);
        let namespace = on_a_thread(|| {
            let namespace = enter()?;
            self.make_device(&mut machine, &namespace, &name, address)
                .and_then(|()| self.set_up_inside(address))
                .map_err(step("making a network device"))?;
            Ok(namespace)
        });
        let raised = namespace.and_then(|namespace| {
            if let Some(guard) = guard {
                let filtered = machine.filter(&name, guard);
                filtered.map_err(step("filtering a network device"))?;
            }
            self.raise_port(&mut machine, &name)
                .map_err(step("raising a network device"))?;
            Ok(namespace)
        });
        if raised.is_err()
            && let Err(error) = machine.remove(&name)
        {
            log::warn!("the network device {name} stays behind: {error}");
        }
        raised
    }

    fn make_device(
        &self,
        machine: &mut Netlink,
        namespace: &OwnedFd,
        name: &str,
        address: Ipv4Addr,
    ) -> std::io::Result<()> {
        let mut inside = named(DEVICE);
        inside.attributes.extend([
            LinkAttribute::Address(hardware_address(address).to_vec()),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
        ]);
        let mut port = named(name);
        port.attributes.extend([
            LinkAttribute::Controller(self.index),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(inside))),
            ]),
        ]);
        machine.make(port)
    }

    /// Gives the device in the calling thread's namespace its address and routes.
    fn set_up_inside(&self, address: Ipv4Addr) -> std::io::Result<()> {
        let mut inside = Netlink::open()?;
        without_ipv6("all")?;
        let device = inside.index_of(DEVICE)?;
        inside.change(raised(named(DEVICE)))?;
        let subnet = self.config.subnet;
        inside.add_address(device, address, subnet.prefix(), subnet.broadcast())?;
        inside.add_gateway(subnet.gateway())?;
        inside.forbid(LINK_LOCAL.0, LINK_LOCAL.1)
    }

    fn raise_port(&self, machine: &mut Netlink, name: &str) -> std::io::Result<()> {
        without_ipv6(name)?;
        let isolated = self.config.neighbours == Neighbours::Apart;
        let mut port = raised(named(name));
        port.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![InfoBridgePort::Isolated(
                isolated,
            )])),
        ]));
        machine.change(port)
    }

    /// Removes a port, and with it the device at its other end, at once.
    pub(super) fn remove_port(&self, address: Ipv4Addr) -> Result<()> {
        let mut netlink = Netlink::open().map_err(step("asking for network devices"))?;
        remove(&mut netlink, &port_name(&self.config.name, address))
    }

    /// Removes the bridge, unless there are ports on it.
    pub(super) fn remove_if_unused(&self) -> Result<()> {
        let mut netlink = Netlink::open().map_err(step("asking for network devices"))?;
        let all = netlink.list().map_err(step("listing network devices"))?;
        match all.iter().any(|link| bridge_of(link) == Some(self.index)) {
            true => Ok(()),
            false => remove(&mut netlink, &self.config.name),
        }
    }
}
