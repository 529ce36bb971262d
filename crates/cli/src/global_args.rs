//! Arguments that all verbs of a program have.

use clap::Args;

use crate::run_dir_arg::RunDirArg;
use crate::start::Talk;
use crate::store_args::StoreArgs;

#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) run_dir: RunDirArg,
    #[command(flatten)]
    pub(crate) talk: Talk,
}
