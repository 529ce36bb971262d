//! `bootimg verify`.

use std::path::PathBuf;

use anyhow::Context as _;
use bootimg::FormatError;
use serde::Serialize;

use super::inspect::open;
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::{StoreSettings, watch};
use host::interrupt::Interrupt;
use host::progress;
use host::size::Size;
use mounting::source::Source;
use recording::keep::{describe, lines};

/// Check a boot image, alone or against its source
///
/// Reads all of it and checks every hash; with --against also compares what it holds with the
/// source, byte for byte. Ends with code 4 if anything is damaged or differs.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// Name or id in the store, or a file (with a `/`)
    #[arg(add = image_names())]
    image: String,
    /// Compare with this source: a directory tree, or a disk image
    #[arg(long, value_name = "SOURCE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// What `verify --json` prints.
#[derive(Debug, Serialize)]
struct Verified {
    bytes: u64,
    /// What is damaged in the boot image itself.
    damaged: Vec<String>,
    against: Option<Against>,
}

/// How the boot image compares with a source.
#[derive(Debug, Serialize)]
struct Against {
    blocks_same: u64,
    /// Files that cannot be served any more, and why.
    stale: Vec<String>,
    /// Files that the boot image would serve wrongly.
    wrong: Vec<String>,
    names_added: u64,
    names_removed: u64,
}

impl Verified {
    /// Returns the result for a boot image that is too damaged to be opened: that is what was
    /// asked for, not a failure.
    ///
    /// # Errors
    /// Gives `error` back if it is another one: no such file, not a boot image, a later format.
    fn unopened(error: anyhow::Error) -> anyhow::Result<Self> {
        let damage = error.chain().find_map(|cause| cause.downcast_ref());
        match damage {
            None
            | Some(FormatError::Magic | FormatError::Version { .. })
            | Some(FormatError::Incompatible { .. }) => Err(error),
            Some(damage) => Ok(Self {
                bytes: 0,
                damaged: vec![damage.to_string()],
                against: None,
            }),
        }
    }

    fn outcome(&self) -> Outcome {
        let against = self.against.as_ref();
        let differs = against.is_some_and(|a| !a.stale.is_empty() || !a.wrong.is_empty());
        if differs || !self.damaged.is_empty() {
            Outcome::Different
        } else {
            Outcome::Done
        }
    }
}

pub(super) fn run(
    args: &VerifyArgs,
    store: &StoreSettings,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let image = match open(store, &args.image) {
        Ok(image) => image,
        Err(error) => return finish(args, &Verified::unopened(error)?),
    };
    let bar = progress::bytes("verifying", image.info().data_blocks * 4096);
    let report = image.verify(&mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    let report = report.with_context(|| format!("verifying {}", args.image))?;
    let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let extents = lines(&report.damaged, |extent| {
        format!("{}: blocks {:?}", path(&extent.path), extent.range)
    });
    let parts = report.parts.iter().map(ToString::to_string);
    let unreadable = report
        .unreadable
        .iter()
        .map(|part| format!("the {part} cannot be read"));
    let damaged = parts.chain(unreadable).chain(extents).collect();
    let against = match &args.against {
        Some(source) => Some(compare(&image, &Source::open(source)?, interrupt)?),
        None => None,
    };
    let verified = Verified {
        bytes: report.bytes,
        damaged,
        against,
    };
    finish(args, &verified)
}

fn finish(args: &VerifyArgs, verified: &Verified) -> anyhow::Result<Outcome> {
    print(args.format.format(), verified, text)?;
    if verified.outcome() == Outcome::Different {
        log::warn!(
            "{}: damaged, or different from the source: see above",
            args.image
        );
    }
    Ok(verified.outcome())
}

fn compare(
    image: &std::sync::Arc<bootimg::Image>,
    source: &Source,
    interrupt: &Interrupt,
) -> anyhow::Result<Against> {
    let bar = progress::bytes("comparing", image.info().blocks * 4096);
    let reader = source.reader();
    let report = image.verify_against(&source.tree, &*reader, &mut watch(&bar, interrupt));
    bar.finish_and_clear();
    interrupt.check()?;
    let report = report.context("comparing with the source")?;
    let wrong = lines(&report.differences, |file| {
        let path = String::from_utf8_lossy(&file.path);
        match file.failed {
            Some(reason) => format!("{path}: {reason}"),
            None => format!("{path}: blocks {:?}", file.ranges),
        }
    });
    Ok(Against {
        blocks_same: report.blocks_same,
        stale: lines(&report.attach.dropped, describe),
        wrong,
        names_added: report.attach.names_added,
        names_removed: report.attach.names_removed,
    })
}

fn text(verified: &Verified) -> String {
    let mut text = format!("{} read\n", Size(verified.bytes));
    let mut lines = |what: &str, items: &[String]| {
        for item in items {
            text.push_str(&format!("{what}: {item}\n"));
        }
    };
    lines("damaged", &verified.damaged);
    if let Some(against) = &verified.against {
        lines("stale", &against.stale);
        lines("wrong", &against.wrong);
        let same = Size(against.blocks_same * 4096);
        let (added, removed) = (against.names_added, against.names_removed);
        text.push_str(&format!(
            "{same} are the same as in the source; {added} names were added to it, {removed} removed\n"
        ));
    }
    if verified.outcome() == Outcome::Done {
        text.push_str("all is as it was recorded\n");
    }
    text
}
