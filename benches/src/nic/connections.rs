//! The memory of the servers with a thousand connections: idle, and with an answer each that its
//! client does not read, which is what costs a server most.

mod asker;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::http::Connection;
use super::registry::Registry;
use super::service::{BLOCKS, Nicfetch, Server, admin_at};
use crate::aims::Aim;
use crate::interrupt;
use crate::micro::Series;
use crate::process::wait_for;
use asker::Asker;

/// Connections, and descriptors that the rig needs for them and everything else.
const CONNECTIONS: usize = 1000;
const FILES: u64 = 8192;
/// A blob that no socket's buffer holds.
const BLOB_BYTES: usize = 64 << 20;
/// Memory is what it will be when it did not grow for so long.
const QUIET: Duration = Duration::from_secs(2);
/// Growing takes less.
const DEADLINE: Duration = Duration::from_secs(120);
/// What a connection may cost: the mirror may take 400 KiB; the protocol's documentation says that
/// 512 KiB wait to be written, and the chunk that was read last comes on top.
const MIRROR_MIB: f64 = 400.0;
const BLOCKS_MIB: f64 = 640.0;

/// Looks at the memory of both servers.
///
/// # Errors
/// If a server does not come up or refuses.
pub fn measure(nicfetch: &Nicfetch, home: &Path) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    raise_limit()?;
    fs::create_dir_all(home).with_context(|| format!("making {}", home.display()))?;
    let noise = home.join("source/noise");
    fs::create_dir_all(home.join("source")).context("making a source")?;
    let mut shuffle = crate::rounds::Shuffle::from_seed(2);
    let words = std::iter::repeat_with(|| shuffle.below(u64::MAX).to_le_bytes());
    let bytes: Vec<u8> = words.take(BLOB_BYTES / 8).flatten().collect();
    fs::write(&noise, bytes).context("writing a source")?;
    let (mut series, mirror) = of_mirror(nicfetch, home, &noise)?;
    let (more, blocks) = of_blocks(nicfetch, home)?;
    series.extend(more);
    let aim = |limit, what: &str, measured| {
        let what = format!("MiB of {what} more with {CONNECTIONS} answers that nobody reads");
        Aim::at_most(limit, what, Some(measured))
    };
    let aims = vec![
        aim(MIRROR_MIB, "the mirror", mirror),
        aim(BLOCKS_MIB, "the block service", blocks),
    ];
    Ok((series, aims))
}

/// Lets the rig, and what it starts, have a descriptor for each connection.
fn raise_limit() -> anyhow::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("asking for a limit")?;
    let wanted = FILES.max(soft);
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).context("raising a limit")
}

/// Looks three times: without clients, with idle ones, and with those that do not read.
fn three_looks<C>(
    what: &str,
    pid: u32,
    connect: impl Fn(usize) -> anyhow::Result<C>,
    ask: impl Fn(&mut C) -> anyhow::Result<()>,
) -> anyhow::Result<(Vec<Series>, f64)> {
    let look = |when: &str| -> anyhow::Result<Series> {
        let value = settled_mib(pid)?;
        Ok(Series {
            values: vec![value],
            ..Series::new(format!("memory of {what}, {when}"), "MiB")
        })
    };
    let alone = look("no connections")?;
    let mut connections = Vec::with_capacity(CONNECTIONS);
    for number in 0..CONNECTIONS {
        interrupt::check()?;
        connections.push(connect(number)?);
    }
    let idle = look(&format!("{CONNECTIONS} idle"))?;
    connections.iter_mut().try_for_each(ask)?;
    let busy = look(&format!("{CONNECTIONS} answers unread"))?;
    drop(connections);
    let after = look("after that")?;
    let more = busy.values[0] - alone.values[0];
    Ok((vec![alone, idle, busy, after], more))
}

fn of_mirror(nicfetch: &Nicfetch, home: &Path, noise: &Path) -> anyhow::Result<(Vec<Series>, f64)> {
    let registry = Registry::start_anywhere(&home.join("registry"))?;
    let blob = registry.keep_blob(noise)?;
    let store = home.join("mirror");
    let config = serde_json::json!({
        "listen": "127.0.0.1:0", "admin": admin_at(&store), "store": store,
        "connections": 2 * CONNECTIONS, "connections_of_one": 2 * CONNECTIONS,
        "upstreams": [{"name": "docker.io", "url": format!("http://{}", registry.address())}],
    });
    let server = configured(nicfetch, home, "mirror", &config, &["clients", "admin"])?;
    let to = server.address("clients")?.parse().context("an address")?;
    let first = Connection::open(to)?.request("GET", &blob, "", &[])?;
    ensure!(first.status == 200, "the mirror answers {}", first.status);
    let connect = |_| {
        let mut connection = Connection::open(to)?;
        let answer = connection.request("GET", "/v2/", "", &[])?;
        ensure!(answer.status == 200, "the mirror answers {}", answer.status);
        Ok(connection)
    };
    let ask = |connection: &mut Connection| connection.ask("GET", &blob, "");
    three_looks("the mirror", server.pid(), connect, ask)
}

fn of_blocks(nicfetch: &Nicfetch, home: &Path) -> anyhow::Result<(Vec<Series>, f64)> {
    let store = home.join("blocks");
    nicfetch.import(&store, "bench", &home.join("source"))?;
    let config = serde_json::json!({
        "admin": admin_at(&store), "store": store, "blocks": "127.0.0.1:0", "blocks_open": true,
        "limits": {"blocks_connections_of_one": 2 * CONNECTIONS},
    });
    let server = configured(nicfetch, home, "blocks", &config, &[BLOCKS])?;
    let to = server.address(BLOCKS)?.parse().context("an address")?;
    let connect = |number| Asker::connect(to, &format!("vm{number}"), "bench");
    three_looks(
        "the block service",
        server.pid(),
        connect,
        Asker::ask_for_much,
    )
}

/// Starts a server that lets one address have all connections: only its configuration can say so.
fn configured(
    nicfetch: &Nicfetch,
    home: &Path,
    name: &str,
    config: &serde_json::Value,
    says: &[&str],
) -> anyhow::Result<Server> {
    let file = home.join(format!("{name}.json"));
    fs::write(&file, config.to_string()).context("writing a configuration")?;
    let mut command = std::process::Command::new(nicfetch.program());
    command.args(["serve", "--config"]).arg(&file);
    Server::start(command, says, &home.join(name))
}

/// Waits until a process' memory does not grow any more, and returns it.
fn settled_mib(pid: u32) -> anyhow::Result<f64> {
    let (mut most, mut since) = (0.0, Instant::now());
    wait_for("memory that does not grow", DEADLINE, || {
        let now = resident_mib(pid)?;
        // An arena more or less is no growth.
        if now > most + 1.0 {
            (most, since) = (now, Instant::now());
        }
        Ok((since.elapsed() > QUIET).then_some(now))
    })
}

/// Returns what a process has in memory that is its own.
fn resident_mib(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    anonymous_mib(&text).with_context(|| format!("{path} does not say"))
}

fn anonymous_mib(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_kernel_says() {
        let status = "VmRSS:\t 9000 kB\nRssAnon:\t    2048 kB\nRssFile:\t 1 kB\n";
        assert_eq!(anonymous_mib(status), Some(2.0));
        assert_eq!(anonymous_mib("Name: x\n"), None);
        assert!(resident_mib(std::process::id()).unwrap() > 0.0);
    }
}
