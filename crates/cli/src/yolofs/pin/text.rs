//! What `yolofs pin` prints for people.

use std::path::Path;

use host::size::Size;
use pinning::Method;
use pinning::talk::{Bound, BoundKind, PinStatus};

use super::{PlannedPins, RecordedPins};
use crate::output::{count, percent, table};

pub(super) fn recorded(told: &RecordedPins) -> String {
    let method = match told.method {
        Method::Pages => "page by page",
        Method::Around => "in pieces of 64 KiB where files are mapped",
        Method::BeforeAfter => "by what is in memory before and after",
    };
    let (bytes, all) = (Size(told.bytes), Size(told.file_bytes));
    let mut text = format!(
        "{}: {bytes} of {}, {} of their {all}; found {method}\n",
        told.name,
        count(told.files as u64, "file"),
        percent(told.bytes, told.file_bytes),
    );
    if told.lost_events > 0 {
        text.push_str(&format!(
            "{} found no room: record it again\n",
            count(told.lost_events, "event")
        ));
    }
    if told.files_elsewhere > 0 {
        let elsewhere = count(told.files_elsewhere as u64, "file");
        text.push_str(&format!("{elsewhere} elsewhere were touched, too, or are gone (--under names more directories)\n"));
    }
    text
}

pub(super) fn planned(planned: &PlannedPins) -> String {
    let budget = match planned.budget_bytes {
        Some(budget) => format!("of {} that may be held", Size(budget)),
        None => "nobody holds pages now".to_owned(),
    };
    format!("{}; {budget}", Size(planned.bytes))
}

pub(super) fn status(status: &PinStatus) -> String {
    let mut text = match status.pid {
        Some(pid) => format!(
            "{} held of {} that may be, pid {pid}\n",
            Size(status.locked_bytes),
            Size(status.budget_bytes)
        ),
        None => "nobody holds pages: start `yolofs pin serve`\n".to_owned(),
    };
    if status.left_out_bytes > 0 {
        text.push_str(&left_out(status));
    }
    if let Some(group) = &status.group {
        let limit = group
            .limit_bytes
            .map_or("no limit".to_owned(), |limit| Size(limit).to_string());
        let (charged, path) = (Size(group.charged_bytes), group.path.display());
        text.push_str(&format!("charged to {path}: {charged} of {limit}\n"));
    }
    if !status.profiles.is_empty() {
        let head = [
            "PROFILE", "APPLIED", "HELD", "WANTED", "OF", "FILES", "CHANGED", "GONE",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for profile in &status.profiles {
            rows.push(vec![
                profile.name.clone(),
                if profile.applied { "yes" } else { "no" }.to_owned(),
                Size(profile.locked_bytes).to_string(),
                Size(profile.bytes).to_string(),
                Size(profile.file_bytes).to_string(),
                profile.files.to_string(),
                profile.changed_files.to_string(),
                profile.missing_files.to_string(),
            ]);
        }
        text.push_str(&table(&rows));
    }
    for problem in &status.problems {
        text.push_str(&format!("{problem}\n"));
    }
    text
}

/// Says what is not held, why, and what to change.
fn left_out(status: &PinStatus) -> String {
    let remedy = status.bound.as_ref().map_or_else(
        || "raise --budget".to_owned(), // a process of an earlier release has no other limit
        remedy,
    );
    let left_out = Size(status.left_out_bytes);
    let mut text = format!("{left_out} find no room: {remedy}, or drop a profile\n");
    for file in &status.left_out {
        text.push_str(&format!(
            "  {} of {}\n",
            Size(file.bytes),
            file.path.display()
        ));
    }
    text
}

fn remedy(bound: &Bound) -> String {
    let (limit, used) = (Size(bound.limit_bytes), Size(bound.used_bytes));
    match bound.kind {
        BoundKind::Budget => "raise --budget".to_owned(),
        BoundKind::Cgroup => {
            let path = bound.path.as_deref().unwrap_or(Path::new("its cgroup"));
            format!(
                "{} may use {limit}, and {used} are used: raise its limit (MemoryMax= of the unit)",
                path.display()
            )
        }
        BoundKind::Memlock => format!(
            "RLIMIT_MEMLOCK is {limit}: raise it (LimitMEMLOCK= of the unit), or give the process CAP_IPC_LOCK"
        ),
    }
}
