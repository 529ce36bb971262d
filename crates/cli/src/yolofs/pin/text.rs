//! What `yolofs pin` prints for people.

use host::size::Size;
use pinning::Method;
use pinning::talk::PinStatus;

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
        let left_out = Size(status.left_out_bytes);
        text.push_str(&format!(
            "{left_out} find no room: raise --budget, or drop a profile\n"
        ));
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
