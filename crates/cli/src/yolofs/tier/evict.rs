//! `yolofs tier evict`.

use std::path::Path;

use anyhow::{Context as _, bail};
use blocks::ContentId;
use serde::Serialize;

use super::pin::{files_apart, meant};
use crate::exit::Outcome;
use crate::output::{FormatArg, print};
use bootstore::store::StoreSettings;
use bootstore::tiers::Tiers;
use bootstore::tiers::mover::{Dropped, Mover, PATIENCE};
use bootstore::tiers::plan::gather;

/// Remove the copies of boot images and of whole files from the tiers now
///
/// They are served from the store, and from their source, then, and come back when they are hot
/// enough. A copy that
/// somebody has open stays, and the code is 4.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct EvictArgs {
    /// Names or ids of boot images, or container images that were recorded: all of their layers; or
    /// paths of files that were promoted, which begin with /, ./ or ../
    #[arg(required_unless_present = "all", value_name = "IMAGE")]
    images: Vec<String>,
    /// Everything on the tiers that is not pinned, unknown objects included
    #[arg(long, conflicts_with = "images")]
    all: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What became of one copy.
#[derive(Debug, Serialize)]
struct Evicted {
    name: String,
    tier: String,
    /// `gone`, `open` or `pinned`: the last two are there still.
    state: &'static str,
}

pub(super) fn run(args: &EvictArgs, store: &StoreSettings) -> anyhow::Result<Outcome> {
    let tiers = store.tiers()?;
    let (objects, pinned) = chosen(args, store, &tiers)?;
    let mut evicted: Vec<Evicted> = Vec::new();
    if !objects.is_empty() {
        let mover = Mover::open(&tiers, PATIENCE)?;
        for (object, name) in objects {
            drop_everywhere(&mover, &tiers, object, &name, &mut evicted)
                .with_context(|| format!("evicting {name}"))?;
            if mover.places_of(object).is_empty() {
                tiers.forget_copies(object)?;
            }
        }
    }
    evicted.extend(pinned);
    let stayed = evicted.iter().any(|one| one.state == "open");
    print(args.format.format(), &evicted, |evicted| text(evicted))?;
    Ok(if stayed {
        Outcome::Different
    } else {
        Outcome::Done
    })
}

type Named = Vec<(ContentId, String)>;

/// Returns the objects to evict, and those that stay because they are pinned.
fn chosen(
    args: &EvictArgs,
    store: &StoreSettings,
    tiers: &Tiers,
) -> anyhow::Result<(Named, Vec<Evicted>)> {
    let store = store.open_present()?;
    let mut chosen: Named = Vec::new();
    let mut stays = Vec::new();
    let mut choose = |object: Option<ContentId>, name: String, pinned: bool| match object {
        Some(_) if pinned => stays.push(Evicted {
            name,
            tier: String::new(),
            state: "pinned",
        }),
        Some(object) => chosen.push((object, name)),
        None => {}
    };
    if args.all {
        for candidate in gather(tiers, &tiers.look(), &store)? {
            choose(candidate.object, candidate.label, candidate.pinned);
        }
    } else {
        let (files, images) = files_apart(&args.images);
        for (id, name) in meant(&store, &images)? {
            let known = tiers.known().get(id.0).unwrap_or_default();
            choose(known.object, name, known.pinned);
        }
        for name in files {
            for (_, known) in tiers.versions_of(Path::new(&name))? {
                choose(known.object, name.clone(), known.pinned);
            }
        }
        if let Some(one) = stays.first() {
            bail!(
                "{} is pinned: yolofs tier unpin {} first",
                one.name,
                one.name
            );
        }
    }
    Ok((chosen, stays))
}

fn drop_everywhere(
    mover: &Mover,
    tiers: &Tiers,
    object: ContentId,
    name: &str,
    evicted: &mut Vec<Evicted>,
) -> anyhow::Result<()> {
    for place in mover.places_of(object) {
        let state = match mover.drop_from(object, place)? {
            Dropped::Gone => "gone",
            Dropped::Open => "open",
            Dropped::None => continue,
        };
        evicted.push(Evicted {
            name: name.to_owned(),
            tier: tiers.specs()[place].name.clone(),
            state,
        });
    }
    Ok(())
}

fn text(evicted: &[Evicted]) -> String {
    if evicted.is_empty() {
        return "nothing of it lies on a tier".to_owned();
    }
    let line = |one: &Evicted| match one.state {
        "gone" => format!("{}: gone from {}\n", one.name, one.tier),
        "open" => format!(
            "{}: open on {}: it stays until what uses it ends (yolofs status)\n",
            one.name, one.tier
        ),
        _ => format!("{}: pinned, it stays\n", one.name),
    };
    evicted.iter().map(line).collect()
}
