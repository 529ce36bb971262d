//! `nicfetch pin` and `unpin`: which sources stay when room is needed.

use std::time::Duration;

use clap::Args;
use hyper::Method;
use nicfetch::admin::ListedSource;
use nicfetch::client::escaped;

use super::operate::AskArgs;
use crate::exit::Outcome;

/// How long it may take: all chunks of the source are looked for.
const DEADLINE: Duration = Duration::from_secs(300);

/// Exempt the chunks of a source from eviction, also after a restart
///
/// The pin moves to a source that replaces this one under its name. Pinned sources may take half of the
/// space for chunks.
#[derive(Debug, Args)]
pub(super) struct PinArgs {
    /// Name of the source, as nicfetch ls shows it
    source: String,
    #[command(flatten)]
    ask: AskArgs,
}

/// Allow the chunks of a source to be evicted again
#[derive(Debug, Args)]
pub(super) struct UnpinArgs {
    /// Name of the source, as nicfetch ls shows it
    source: String,
    #[command(flatten)]
    ask: AskArgs,
}

pub(super) fn pin(args: &PinArgs) -> anyhow::Result<Outcome> {
    ask(Method::POST, &args.source, &args.ask, "stays")
}

pub(super) fn unpin(args: &UnpinArgs) -> anyhow::Result<Outcome> {
    ask(Method::DELETE, &args.source, &args.ask, "may go")
}

fn ask(method: Method, source: &str, ask: &AskArgs, does: &str) -> anyhow::Result<Outcome> {
    let path = format!("/v1/pins?name={}", escaped(source));
    ask.show(method, &path, DEADLINE, |source: &ListedSource| {
        format!("{} {does}", source.name)
    })
}
