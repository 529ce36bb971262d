//! `nicfetch status`, `ls`, `prewarm` and `gc`: what a running mirror is asked.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use nicfetch::mirror::{AdminStatus, ListedBlob, LoadStatus, Prewarmed, Removed};
use oci::Reference;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::exit::Outcome;
use crate::output::count;
use crate::size::Size;

/// The longest answer: a list of 100 000 blobs.
const ANSWER_MAX: usize = 32 << 20;
/// How long a question may take.
const QUICK: Duration = Duration::from_secs(10);
/// How long an image may take to come, over a thin line.
const SLOW: Duration = Duration::from_secs(3600);

/// Which mirror, and how it answers.
#[derive(Debug, Args)]
pub(super) struct AskArgs {
    /// Where the mirror listens for its operator
    #[arg(
        long,
        value_name = "ADDR",
        env = "NICFETCH_ADMIN",
        default_value = "127.0.0.1:5051"
    )]
    admin: SocketAddr,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show how a mirror does
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// List the blobs of a mirror, the one that was asked for last first
#[derive(Debug, Args)]
pub(super) struct LsArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// Bring an image to a mirror before anybody asks for it
#[derive(Debug, Args)]
pub(super) struct PrewarmArgs {
    /// Name of the image, as clients of the mirror call it
    image: Reference,
    /// Architecture of the machines that will pull it, in OCI's words
    #[arg(long, value_name = "ARCH", default_value = architecture())]
    architecture: String,
    #[command(flatten)]
    ask: AskArgs,
}

/// Remove beginnings of blobs, and blobs that no known image needs and nobody asked for lately
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
    args.ask
        .show(Method::GET, "/v1/status", QUICK, |status: &AdminStatus| {
            let upstreams = status.upstreams.iter().map(|upstream| match upstream.out {
                true => format!("{} (does not answer)", upstream.name),
                false => upstream.name.clone(),
            });
            println!("version    {}", status.version);
            println!(
                "ready      {}",
                if status.ready { "yes" } else { "no: it ends" }
            );
            println!("upstreams  {}", upstreams.collect::<Vec<_>>().join(", "));
            println!("manifests  {}", status.manifests);
            println!(
                "blobs      {} ({} on their way)",
                status.blobs, status.growing
            );
            let (stored, budget) = (Size(status.stored_bytes), Size(status.budget_bytes));
            println!("stored     {stored} of {budget}");
            println!(
                "removed    {} ({})",
                count(status.evicted.blobs, "blob"),
                Size(status.evicted.bytes)
            );
            println!("load       {}", load(&status.load));
        })
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

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<Outcome> {
    args.ask.show(
        Method::GET,
        "/v1/blobs",
        QUICK,
        |blobs: &Vec<ListedBlob>| {
            for blob in blobs {
                let (bytes, images) = (Size(blob.bytes), count(blob.references, "manifest"));
                println!("{} {bytes:>10} {:8} {images}", blob.digest, blob.state);
            }
        },
    )
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
    args.ask
        .show(Method::POST, &path, SLOW, |done: &Prewarmed| {
            let (bytes, fetched) = (Size(done.bytes), Size(done.fetched_bytes));
            let blobs = count(done.blobs, "blob");
            println!("{image}: {blobs}, {bytes}, of which {fetched} were fetched");
        })
}

pub(super) fn gc(args: &GcArgs) -> anyhow::Result<Outcome> {
    args.ask
        .show(Method::POST, "/v1/gc", QUICK, |removed: &Removed| {
            println!(
                "removed {} ({})",
                count(removed.blobs, "blob"),
                Size(removed.bytes)
            );
        })
}

impl AskArgs {
    /// Asks, and prints the answer.
    fn show<T: Serialize + DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        deadline: Duration,
        print: impl FnOnce(&T),
    ) -> anyhow::Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let asking = async { timeout(deadline, ask(self.admin, method, path)).await };
        let answer = runtime.block_on(asking).with_context(|| {
            format!(
                "the mirror at {} did not answer within {} s",
                self.admin,
                deadline.as_secs()
            )
        })??;
        let answer: T = serde_json::from_slice(&answer)
            .with_context(|| format!("{} is no mirror of this version", self.admin))?;
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&answer)?),
            false => print(&answer),
        }
        Ok(Outcome::Done)
    }
}

async fn ask(admin: SocketAddr, method: Method, path: &str) -> anyhow::Result<Bytes> {
    let stream = TcpStream::connect(admin).await.with_context(|| {
        format!("no mirror listens on {admin} (start one with nicfetch serve, or say where with --admin)")
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let conversation = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, admin.to_string())
        .body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body
        .map_err(|error| anyhow::anyhow!("reading the answer: {error}"))?
        .to_bytes();
    drop(sender);
    drop(conversation);
    if !status.is_success() {
        bail!("the mirror refuses: {}", message(&body));
    }
    Ok(body)
}

fn message(body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let message = value["errors"][0]["message"].as_str();
    message.unwrap_or("it does not say why").to_owned()
}
