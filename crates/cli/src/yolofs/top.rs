//! `yolofs top`: how the node and its mounts do, now.

mod rows;
mod screen;

use std::io::IsTerminal as _;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use crate::exit::Outcome;
use crate::output::write_out;
use crate::run_dir_arg::RunDirArg;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use node_api::client::{CallError, NodeClient};
use recording::until::seconds;
use rows::{NodeSnapshot, Order, SortBy};
use screen::{KeyAction, Screen};

/// How long a key or a new snapshot may wait until it is seen.
const NOTICE: Duration = Duration::from_millis(50);

/// More often than this, the node would be busy with being looked at.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Watch the node and its mounts
///
/// Shows for each mount its state, reads and bytes from the source per second, the share of bytes
/// that came from the boot image (what is in the page cache included), divergence and restarts.
/// Keys: q quits, n, t, r, b, s, d and x sort (again: the other way round), arrows scroll.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TopArgs {
    /// Print one table and end; the default without a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between updates
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Sort by this column
    #[arg(long, value_name = "NAME", default_value = "name")]
    sort: SortBy,
}

pub(super) fn run(args: &TopArgs, run_dir: &RunDirArg) -> anyhow::Result<Outcome> {
    let client = NodeClient::of(&RunDir::open(&run_dir.run_dir)?);
    let interval = args.interval.max(SHORTEST_INTERVAL);
    let order = Order::by(args.sort);
    if args.once || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        write_out(once(&client, interval, order)?.as_bytes())?;
        return Ok(Outcome::Done);
    }
    let interrupt = Interrupt::install()?;
    let snapshots = look(client, interval)?;
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let watched = watch(&mut terminal, Screen::new(order), &snapshots, &interrupt);
    ratatui::try_restore().context("restoring the terminal")?;
    watched?;
    Ok(Outcome::Done)
}

/// Looks twice, because a rate needs two counts, and returns the table.
fn once(client: &NodeClient, interval: Duration, order: Order) -> Result<String, CallError> {
    let before = NodeSnapshot::take(client)?;
    std::thread::sleep(interval);
    let now = NodeSnapshot::take(client)?;
    Ok(rows::text(Some(&before), &now, order))
}

/// Looks again and again, on a thread of its own: a node that does not answer must not keep keys
/// from working. The thread ends with the receiver, or with the process if it waits for the node.
fn look(
    client: NodeClient,
    interval: Duration,
) -> anyhow::Result<Receiver<Result<NodeSnapshot, CallError>>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("look".to_owned())
        .spawn(move || {
            while sender.send(NodeSnapshot::take(&client)).is_ok() {
                std::thread::sleep(interval);
            }
        })
        .context("starting the thread that looks")?;
    Ok(receiver)
}

fn watch(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    snapshots: &Receiver<Result<NodeSnapshot, CallError>>,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut stale = true;
    while !interrupt.asked() {
        if let Ok(snapshot) = snapshots.try_recv() {
            screen.saw(snapshot);
            stale = true;
        }
        if stale {
            terminal
                .draw(|frame| screen.draw(frame))
                .context("drawing on the terminal")?;
            stale = false;
        }
        if event::poll(NOTICE).context("waiting for keys")? {
            stale = true;
            if let Event::Key(key) = event::read().context("reading a key")?
                && screen.press(key) == KeyAction::Quit
            {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use node_api::bodies::socket;
    use node_api::memory::{MemoryNode, busy_mount};
    use node_service::api::{Api, listen};

    #[test]
    fn without_a_terminal_there_is_one_table() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(dir.path()).unwrap();
        let node = MemoryNode::default();
        node.put(busy_mount("/mnt/a"));
        let listener = listen(&socket(&run_dir)).unwrap();
        let api = Api::serve(listener, Arc::new(node)).unwrap();
        let client = NodeClient::of(&run_dir);
        let table = once(&client, Duration::ZERO, Order::by(SortBy::Name)).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            lines[0].starts_with("yolofs 0.1.0, pid 4200, up 1 d 0 h"),
            "{table}"
        );
        assert!(lines[1].starts_with("MOUNT POINT"), "{table}");
        assert!(lines[2].starts_with("/mnt/a"), "{table}");
        drop(api);
        let away = once(&client, Duration::ZERO, Order::by(SortBy::Name)).unwrap_err();
        assert!(matches!(away, CallError::Nobody(_)), "{away}");
    }

    #[test]
    fn looking_ends_with_whoever_looks() {
        let dir = tempfile::tempdir().unwrap();
        let snapshots = look(NodeClient::at(dir.path().join("x")), Duration::ZERO).unwrap();
        assert!(matches!(
            snapshots.recv().unwrap(),
            Err(CallError::Nobody(_))
        ));
        assert!(matches!(
            snapshots.recv().unwrap(),
            Err(CallError::Nobody(_))
        ));
    }
}
