//! `nicfetch status`, `ls`, `prewarm` and `gc`: what a nicfetch that runs is asked.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use hyper::Method;
use hyper::body::Bytes;
use mirror::Prewarmed;
use nicfetch::admin::{
    AdminStatus, BlocksStatus, Collected, ListedBlob, ListedSource, LoadStatus, Verified,
};
use nicfetch::client::AdminClient;
use oci::Reference;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::args::AdminArgs;
use crate::exit::Outcome;
use crate::output::{FormatArg, count, print, waiting};
use host::size::Size;
use mounting::confinement::{Intake, Rights};

/// How long a question may take.
const QUICK: Duration = Duration::from_secs(10);
/// How long an image may take to come, over a thin line.
const SLOW: Duration = Duration::from_secs(3600);

/// Which nicfetch, and how it answers.
#[derive(Debug, Args)]
pub(super) struct AskArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// Show the state of nicfetch: the mirror, and the block service
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// List blobs, the most recently used first, and the sources of the block service
#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// Download an image to the mirror in advance
#[derive(Debug, Args)]
pub(super) struct PrewarmArgs {
    /// Name of the image, as clients of the mirror call it
    image: Reference,
    /// Architecture of the image, as OCI names it (amd64, arm64)
    #[arg(long, value_name = "ARCH", default_value = architecture())]
    architecture: String,
    #[command(flatten)]
    ask: AskArgs,
}

/// Remove incomplete blobs, blobs that no known image needs and nobody used lately, and chunks of
/// replaced sources
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// This machine's architecture in OCI's words.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<Outcome> {
    args.ask.show(Method::GET, "/v1/status", QUICK, status_text)
}

fn status_text(status: &AdminStatus) -> String {
    let upstreams = status.upstreams.iter().map(|upstream| match upstream.out {
        true => format!("{} (does not answer)", upstream.name),
        false => upstream.name.clone(),
    });
    let (stored, budget) = (Size(status.stored_bytes), Size(status.budget_bytes));
    let mut lines = vec![
        format!("version    {}", status.version),
        format!(
            "ready      {}",
            if status.ready { "yes" } else { "no: it ends" }
        ),
        format!("upstreams  {}", upstreams.collect::<Vec<_>>().join(", ")),
        format!("manifests  {}", status.manifests),
        format!(
            "blobs      {} ({} on their way)",
            status.blobs, status.growing
        ),
        format!("stored     {stored} of {budget}"),
        format!(
            "removed    {} ({})",
            count(status.evicted.blobs, "blob"),
            Size(status.evicted.bytes)
        ),
        format!("load       {}", load(&status.load)),
    ];
    if let Some(blocks) = &status.blocks {
        lines.extend(blocks_lines(blocks));
    }
    lines.join("\n")
}

fn load(load: &LoadStatus) -> String {
    let watched = match &load.watched[..] {
        [] => "nothing is measured".to_owned(),
        measures => format!("by {}", measures.join(", ")),
    };
    let reason = load.reason.as_deref().unwrap_or(&watched);
    let shed = count(load.shed, "request");
    format!("{} ({reason}); {shed} shed", load.level)
}

/// What `ls --json` prints.
#[derive(Debug, Serialize)]
struct Listed {
    blobs: Vec<ListedBlob>,
    /// What can be mounted; empty if no blocks are served.
    sources: Vec<ListedSource>,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<Outcome> {
    let admin = AdminClient::connect(&args.ask.admin.settings())?;
    let get = |path| admin.ask(Method::GET, path, Bytes::new(), QUICK);
    let blobs = get("/v1/blobs")?.accepted()?;
    let sources = get("/v1/sources")?.found()?;
    let listed = Listed {
        blobs: serde_json::from_slice(&blobs).context("reading the list of blobs")?,
        sources: match sources {
            Some(sources) => {
                serde_json::from_slice(&sources).context("reading the list of sources")?
            }
            None => Vec::new(),
        },
    };
    args.ask.print(&listed, |listed| {
        let mut lines = Vec::new();
        for blob in &listed.blobs {
            let (bytes, images) = (Size(blob.bytes), count(blob.references, "manifest"));
            lines.push(format!(
                "{} {bytes:>10} {:8} {images}",
                blob.digest, blob.state
            ));
        }
        for source in &listed.sources {
            let (bytes, boots) = (Size(source.bytes), count(source.boots, "boot image"));
            let state = match source.absent_chunks {
                0 => "whole".to_owned(),
                absent => format!("{} missing", count(absent, "chunk")),
            };
            let pinned = if source.pinned { ", pinned" } else { "" };
            lines.push(format!(
                "{} {bytes:>10} {state:8} {boots}{pinned}",
                source.name
            ));
        }
        lines.join("\n")
    })
}

pub(super) fn prewarm(args: &PrewarmArgs) -> anyhow::Result<Outcome> {
    let image = &args.image;
    let digest = image.digest().map(|digest| digest.to_string());
    let reference = digest.as_deref().or_else(|| image.tag());
    let path = format!(
        "/v1/prewarm?registry={}&repository={}&reference={}&architecture={}",
        image.registry(),
        image.repository(),
        reference.unwrap_or("latest"),
        args.architecture
    );
    let admin = args.ask.admin.settings();
    let intake = Intake {
        reads: admin.token_file.iter().cloned().collect(),
        writes: Vec::new(),
        clears: Vec::new(),
        asks: admin.asks(),
        rights: Rights::Keeps,
    };
    intake.confine()?;
    args.ask
        .show(Method::POST, &path, SLOW, |done: &Prewarmed| {
            let (bytes, fetched) = (Size(done.bytes), Size(done.fetched_bytes));
            let blobs = count(done.blobs, "blob");
            let mut text = format!("{image}: {blobs}, {bytes}, of which {fetched} were fetched");
            if let Some(source) = &done.source {
                text.push_str(&format!(
                    "\nchunks are made of it: it can be mounted as nic:{source} soon"
                ));
            }
            text
        })
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<Outcome> {
    args.ask
        .show(Method::POST, "/v1/gc", SLOW, |removed: &Collected| {
            let (blobs, bytes) = (removed.blobs.blobs, Size(removed.blobs.bytes));
            let mut text = format!("removed {} ({bytes})", count(blobs, "blob"));
            if let Some(chunks) = &removed.chunks {
                text.push_str(&format!(
                    "\nremoved {}, chunks take {} instead of {}",
                    count(chunks.indexes, "old source"),
                    Size(chunks.bytes_after),
                    Size(chunks.bytes_before)
                ));
            }
            text
        })
}

/// Check every blob and every chunk of a nicfetch that runs
///
/// Reads all of them, and compares each with its hash. Ends with code 4 if anything is damaged,
/// or cannot be read. What is damaged is removed, and fetched again when somebody asks for it; what
/// cannot be read is kept. Clients are served meanwhile.
#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn verify(args: &VerifyArgs) -> anyhow::Result<Outcome> {
    let admin = AdminClient::connect(&args.ask.admin.settings())?;
    let bar = waiting("verifying");
    let verified = admin.document(Method::POST, "/v1/verify", Bytes::new(), SLOW);
    bar.finish_and_clear();
    let verified: Verified = verified?;
    args.ask.print(&verified, |verified| {
        let read = format!(
            "{} of {} and {} of {} read, {} damaged",
            count(verified.blobs, "blob"),
            Size(verified.blob_bytes),
            count(verified.chunks, "chunk"),
            Size(verified.chunk_bytes),
            verified.damaged
        );
        let damaged = verified.damaged_names.iter().cloned();
        let unread = verified.unread_names.iter();
        let unread =
            unread.map(|name| format!("{name} cannot be read, and is kept: see nicfetch's log"));
        let lines: Vec<_> = [read].into_iter().chain(damaged).chain(unread).collect();
        lines.join("\n")
    })?;
    let is_sound = verified.damaged == 0 && verified.unread_names.is_empty();
    Ok(match is_sound {
        true => Outcome::Done,
        false => Outcome::Different,
    })
}

fn blocks_lines(blocks: &BlocksStatus) -> Vec<String> {
    let (stored, raw) = (Size(blocks.stored_bytes), Size(blocks.raw_bytes));
    let (disk, budget) = (Size(blocks.disk_bytes), Size(blocks.budget_bytes));
    let at = blocks.feed.at.as_deref().unwrap_or("none at the moment");
    let mut lines = vec![
        format!(
            "sources    {} of {}",
            blocks.sources,
            Size(blocks.source_bytes)
        ),
        format!(
            "chunks     {} of {raw}, in {stored}; files of {disk} of {budget}; {} pinned",
            blocks.chunks, blocks.pinned_chunks
        ),
        format!(
            "sent       {} ({}) to {}; {} missing, {} refused",
            count(blocks.sent_chunks, "chunk"),
            Size(blocks.sent_bytes),
            count(blocks.connections, "connection"),
            blocks.absent,
            blocks.refused
        ),
        format!(
            "making     {at}; {} waiting, {} made, {} failed, {} set aside",
            blocks.feed.waiting, blocks.feed.done, blocks.feed.failed, blocks.feed.set_aside
        ),
    ];
    lines.extend(blocks.feed.aside.iter().map(|aside| {
        format!(
            "set aside  {}: {} (nicfetch prewarm tries it again)",
            aside.name, aside.why
        )
    }));
    lines
}

impl AskArgs {
    /// Asks, and prints the answer.
    pub(super) fn show<T: Serialize + DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        deadline: Duration,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<Outcome> {
        let admin = AdminClient::connect(&self.admin.settings())?;
        let answer: T = admin.document(method, path, Bytes::new(), deadline)?;
        self.print(&answer, text)
    }

    fn print<T: Serialize>(
        &self,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<Outcome> {
        print(self.format.format(), answer, text)?;
        Ok(Outcome::Done)
    }
}
