//! The flags of how a start that is recorded or compared is made.

/// How the command, the container or the machine is started.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct StartArgs {
    /// Do not change the command's root: it gets the path of the tree in $YOLOFS_MNT
    #[arg(long)]
    pub(super) no_chroot: bool,
    /// Options for the engine's run command, in one piece or several
    #[arg(
        long,
        value_name = "ARGS",
        allow_hyphen_values = true,
        help_heading = "Images"
    )]
    pub(super) run_args: Vec<String>,
    /// Options for QEMU, in one piece or several; they replace defaults of ours
    #[arg(
        long,
        value_name = "ARGS",
        allow_hyphen_values = true,
        help_heading = "Machines"
    )]
    pub(super) qemu_args: Vec<String>,
}
