//! Sandboxes and Zygotes as text for people.

use sandbox::{Cause, Exit, ExitStatus, Phase, ZygoteView};
use sandbox_handlers::HandlerView;
use sandbox_packages::Installed;
use sandbox_service::bodies::{SandboxView, Stats};

use crate::text::table;

pub(crate) fn phase(phase: Phase) -> String {
    match phase {
        Phase::Running => "running".to_owned(),
        Phase::Paused => "paused".to_owned(),
        Phase::Ended(Exit { status, cause }) => {
            let how = match status {
                ExitStatus::Code(code) => format!("ended with {code}"),
                ExitStatus::Signal(signal) => format!("ended by signal {signal}"),
                ExitStatus::Unknown => "ended".to_owned(),
            };
            match cause {
                Some(Cause::Killed) => format!("{how}, killed"),
                Some(Cause::Timeout) => format!("{how}, out of time"),
                Some(Cause::Memory) => format!("{how}, out of memory"),
                None => how,
            }
        }
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, (bytes >> 10) % 1024 * 10 / 1024)
}

pub(crate) fn sandboxes(views: &[SandboxView]) -> String {
    let mut rows = vec![
        ["ID", "BASE", "STATE", "PID", "ADDRESS", "MEMORY", "COMMAND"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for view in views {
        let command = view.command.join(" ").replace('\n', " ");
        rows.push(vec![
            view.id.clone(),
            view.base.clone(),
            phase(view.phase),
            view.pid.to_string(),
            view.address
                .map_or_else(|| "-".to_owned(), |address| address.to_string()),
            view.memory_bytes.map_or_else(|| "-".to_owned(), mebibytes),
            command.chars().take(60).collect(),
        ]);
    }
    table(&rows)
}

pub(crate) fn zygotes(views: &[ZygoteView]) -> String {
    let mut rows = vec![
        [
            "ID", "FROM", "BASE", "FORKS", "IMPORT", "UNSHARED", "PACKAGES",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for view in views {
        let packages: Vec<_> = view.packages.iter().map(String::as_str).collect();
        rows.push(vec![
            view.id.clone(),
            view.parent.clone().unwrap_or_else(|| "-".to_owned()),
            view.base.clone(),
            view.forks.to_string(),
            import(view),
            mebibytes(view.unshared_bytes),
            packages.join(" "),
        ]);
    }
    table(&rows)
}

pub(crate) fn handlers(all: &[HandlerView]) -> String {
    let mut rows = vec![
        ["NAME", "BASE", "SANDBOXES", "IDLE", "WAITING", "CODE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for one in all {
        rows.push(vec![
            one.spec.name.clone(),
            one.spec.base.clone(),
            format!("{} of {}", one.live, one.spec.instances_max),
            one.idle.to_string(),
            one.waiting.to_string(),
            one.spec.code.display().to_string(),
        ]);
    }
    table(&rows)
}

pub(crate) fn packages(all: &[Installed]) -> String {
    let mut rows = vec![
        ["PACKAGE", "BASE", "SIZE", "FILES", "INSTALLED IN"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for one in all {
        rows.push(vec![
            one.package.clone(),
            one.base.clone(),
            mebibytes(one.bytes),
            one.files.to_string(),
            format!(
                "{}.{} s",
                one.install_ms / 1000,
                one.install_ms % 1000 / 100
            ),
        ]);
    }
    table(&rows)
}

/// Only the import of packages is timed, not that of modules of the base.
fn import(view: &ZygoteView) -> String {
    match view.packages.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.1} ms", view.import_ms),
    }
}

pub(crate) fn explain(view: &SandboxView) -> String {
    let SandboxView {
        id,
        base,
        packages,
        ancestry,
        ..
    } = view;
    let mut text = format!("{id} is {} in {base}\n", phase(view.phase));
    text.push_str(&format!("it asked for: {}\n", words(packages)));
    match ancestry.is_empty() {
        true => text.push_str("it began with a program of its own\n"),
        false => text.push_str(&format!("it descends from: {}\n", ancestry.join(" > "))),
    }
    text
}

fn words(list: &[String]) -> String {
    match list.is_empty() {
        true => "no packages".to_owned(),
        false => list.join(" "),
    }
}

pub(crate) fn stats(stats: &Stats) -> String {
    let Stats {
        sandboxes,
        zygotes,
        handlers,
        live,
    } = stats;
    let mean = |micros: u64, count: u64| micros / count.max(1);
    let (hit, start) = (
        mean(handlers.hit_micros, handlers.hits),
        mean(handlers.start_micros, handlers.starts),
    );
    let kept = mebibytes(handlers.kept_bytes);
    format!(
        "sandboxes: {live} live, {} started, {} ended, {} failed to start, {} taken over\n\
         python: {} from a Zygote with all packages, {} with some, {} fresh\n\
         zygotes: {} made, {} of them from others, {} replaced, {} evicted\n\
         handlers: {} requests to one that was ready (mean {hit} us), {} to one that was not (mean {start} us), \
         {} refused, {} late, {} failed\n\
         kept: {kept}; evicted {} sandboxes, {} Zygotes, {} packages\n",
        sandboxes.started,
        sandboxes.ended,
        sandboxes.failed,
        sandboxes.adopted,
        zygotes.exact,
        zygotes.partial,
        zygotes.fresh,
        zygotes.made,
        zygotes.derived,
        zygotes.replaced,
        zygotes.evicted,
        handlers.hits,
        handlers.starts,
        handlers.busy,
        handlers.late,
        handlers.failed,
        handlers.evicted_instances,
        handlers.evicted_zygotes,
        handlers.evicted_packages,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ends_are_words() {
        assert_eq!(mebibytes((3 << 20) + (512 << 10)), "3.5 MiB");
        let exit = Exit {
            status: ExitStatus::Signal(9),
            cause: Some(Cause::Memory),
        };
        assert_eq!(
            phase(Phase::Ended(exit)),
            "ended by signal 9, out of memory"
        );
    }
}
