//! `yolofs snapshotter status`.

use crate::exit::Outcome;
use crate::layers_text::layers_text;
use crate::output::{FormatArg, count, percent, print, table};
use containerd_service::snapshotter_service::first_boot::{FirstBootStatus, Outcome as Became};
use containerd_service::snapshotter_service::status::{LayersFastStatus, SnapshotterStatus, all};
use host::run_dir::RunDir;
use host::size::Size;
use layers::server::ServedBy;

/// Show what is served, what is being recorded, and what containers wrote
///
/// Of every snapshotter that was started with this run directory.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &StatusArgs, run_dir: &RunDir) -> anyhow::Result<Outcome> {
    print(args.format.format(), &all(run_dir)?, |all| {
        all.iter().map(text).collect()
    })?;
    Ok(Outcome::Done)
}

/// Writes a status for people.
fn text(status: &SnapshotterStatus) -> String {
    let mut text = format!(
        "{}: serving containerd at {}, pid {}; {} from boot images{}, {} plain\n",
        status.root.display(),
        status.address.display(),
        status.pid,
        count(status.layers.len() as u64, "layer"),
        match status.served_by {
            ServedBy::Service => "",
            ServedBy::Node => " by the node",
        },
        status.plain_layers,
    );
    if let Some(upper) = &status.upper {
        text.push_str(&format!(
            "containers write to {}: {} of {} ({})\n",
            upper.dir.display(),
            Size(upper.used_bytes),
            Size(upper.max_bytes),
            percent(upper.used_bytes.min(upper.max_bytes), upper.max_bytes),
        ));
    }
    if let Some(fast) = &status.layers_fast {
        text.push_str(&fast_text(fast));
    }
    if !status.layers.is_empty() {
        text.push_str(&layers_text(&status.layers));
    }
    if !status.first_boots.is_empty() {
        text.push_str(&boots_text(&status.first_boots));
    }
    text
}

fn fast_text(fast: &LayersFastStatus) -> String {
    let placed = &fast.placed;
    let disk = fast.disk_bytes_per_second;
    let disk = disk.map(|rate| format!("; the disk writes {}/s", Size(rate)));
    format!(
        "{} in {}: {} of {} ({}); unpacked there since the start {} ({} as the disk would have been late), on the disk {}, for want of room {}, unknown {}{}\n",
        count(fast.layers as u64, "layer"),
        fast.dir.display(),
        Size(fast.used_bytes),
        Size(fast.max_bytes),
        percent(fast.used_bytes.min(fast.max_bytes), fast.max_bytes),
        placed.fast,
        placed.late,
        placed.disk,
        placed.full,
        placed.unknown,
        disk.unwrap_or_default(),
    )
}

fn boots_text(boots: &[FirstBootStatus]) -> String {
    let head = ["FIRST BOOT", "UNTIL", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for boot in boots {
        let state = match &boot.outcome {
            Became::Recording => "recording".to_owned(),
            Became::Recorded { image } => format!("recorded: {image}"),
            Became::Failed { why } => format!("not recorded: {why}"),
        };
        rows.push(vec![boot.container.clone(), boot.until.clone(), state]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use containerd_service::snapshotter_service::placing::Placed;
    use containerd_service::snapshotter_service::status::UpperStatus;

    use super::*;

    #[test]
    fn people_read_what_is_recorded_and_what_is_written() {
        let boot = |outcome| FirstBootStatus {
            container: "default/7/web".to_owned(),
            until: "tcp:80".to_owned(),
            outcome,
        };
        let status = SnapshotterStatus {
            root: PathBuf::from("/var/lib/yolofs/snapshotter"),
            address: PathBuf::from("/run/yolofs/snapshotter.sock"),
            pid: 42,
            served_by: ServedBy::Service,
            layers: Vec::new(),
            plain_layers: 3,
            first_boots: vec![
                boot(Became::Recording),
                boot(Became::Recorded {
                    image: "docker.io/library/nginx:1.25".to_owned(),
                }),
                boot(Became::Failed {
                    why: "no image has this chain".to_owned(),
                }),
            ],
            upper: Some(UpperStatus {
                dir: PathBuf::from("/upper"),
                used_bytes: 1 << 20,
                max_bytes: 4 << 20,
            }),
            layers_fast: Some(LayersFastStatus {
                dir: PathBuf::from("/fast"),
                layers: 2,
                used_bytes: 3 << 20,
                max_bytes: 4 << 20,
                seen: true,
                disk_bytes_per_second: Some(45 << 20),
                placed: Placed {
                    fast: 5,
                    late: 2,
                    disk: 7,
                    full: 1,
                    ..Placed::default()
                },
            }),
        };
        let said = text(&status);
        for words in [
            "pid 42; 0 layers from boot images, 3 plain",
            "/upper: 1.0 MiB of 4.0 MiB",
            "2 layers in /fast: 3.0 MiB of 4.0 MiB (75.0 %); unpacked there since the start 5 (2 as the disk would have been late), on the disk 7,",
            "unknown 0; the disk writes 45.0 MiB/s",
            "recorded: docker.io/library/nginx:1.25",
            "not recorded: no image has this chain",
        ] {
            assert!(said.contains(words), "{words} in\n{said}");
        }
        let read: SnapshotterStatus =
            serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(text(&read), said);
    }
}
