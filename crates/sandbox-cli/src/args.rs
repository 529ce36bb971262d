//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

const EXIT_CODES: &str = "\
Exit codes:
  0    done; `run` and `exec` end as their program does
  2    the command line is wrong
  124  the program's time was over
  125  failed; the message says what, why and what to try
  128+N  signal N ended the program";

/// Run programs in sandboxes that start in about a millisecond.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Sandbox {
    /// Where the daemon listens, and remembers what runs
    #[arg(
        long,
        global = true,
        default_value = "/run/sandbox",
        env = "SANDBOX_RUN_DIR"
    )]
    pub(crate) run_dir: PathBuf,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the daemon; sandboxes outlive it, and the next one finds them
    Serve(ServeArgs),
    /// The directories that sandboxes have as their root
    #[command(subcommand)]
    Base(BaseCommand),
    /// The packages that programs of Python may ask for
    #[command(subcommand)]
    Package(PackageCommand),
    /// Functions that sandboxes are kept ready for
    #[command(subcommand)]
    Handler(HandlerCommand),
    /// Have a handler handle an event
    Call {
        /// The handler
        name: String,
        /// The event, as JSON
        #[arg(default_value = "null")]
        event: String,
    },
    /// The interpreters that sandboxes are forked from
    #[command(subcommand)]
    Zygote(ZygoteCommand),
    /// Run a program in a new sandbox
    Run(RunArgs),
    /// Run another program in a sandbox
    Exec(ExecArgs),
    /// List sandboxes
    Ps,
    /// Show the output of a sandbox, and how it ended
    Logs(IdArg),
    /// Freeze a sandbox, and give back memory
    Pause(IdArg),
    /// Let a sandbox go on
    Resume(IdArg),
    /// Kill a sandbox
    Kill(IdArg),
    /// Show how a sandbox began: the Zygotes that it descends from
    Explain(IdArg),
    /// Show what was done so far
    Stats,
    /// End a Zygote; its sandboxes go on
    Evict(IdArg),
    /// Print what has a shell complete this command line
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct IdArg {
    /// Its id
    pub(crate) id: String,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The control group of all sandboxes, in each hierarchy
    #[arg(long, default_value = "sandbox")]
    pub(crate) cgroup: String,
    /// The user that the first sandbox is; the others are those behind it
    #[arg(long, default_value_t = 0x7000_0000)]
    pub(crate) first_uid: u32,
    /// How many sandboxes there may be
    #[arg(long, default_value_t = 4096)]
    pub(crate) max: u32,
    /// The directory of packages
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sandbox/packages")]
    pub(crate) packages: PathBuf,
    /// Have handlers answer POST /run/NAME here, for whoever reaches it
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Make a bridge with these addresses for sandboxes with --network veth; the first one is the machine's
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub(crate) subnet: Option<sandbox::Subnet>,
    /// The name of the bridge
    #[arg(
        long,
        value_name = "NAME",
        default_value = "sandbox0",
        requires = "subnet"
    )]
    pub(crate) bridge: String,
    /// Let sandboxes on the bridge reach each other
    #[arg(long, requires = "subnet")]
    pub(crate) neighbours: bool,
    /// Memory of Zygotes and of sandboxes that wait for requests to their handlers, together
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) keep_memory: u64,
    /// Installed packages that no handler needs; without it they are not bounded
    #[arg(long, value_name = "MIB")]
    pub(crate) keep_packages: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BaseCommand {
    /// Add a base
    Add {
        /// What it is called
        name: String,
        /// The directory: an unpacked image, a mount of yolofs, or /
        root: PathBuf,
        /// A name at its top that sandboxes see as an empty directory
        #[arg(long, value_name = "NAME")]
        hide: Vec<String>,
    },
    /// List bases
    Ls,
    /// Forget a base; sandboxes that have it keep it
    Rm {
        /// What it is called
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum HandlerCommand {
    /// Add a handler; nothing of it runs before it is called
    Add(HandlerArgs),
    /// List handlers
    Ls,
    /// Remove a handler, and end its sandboxes
    Rm {
        /// What it is called
        name: String,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum NetworkArg {
    /// A loopback device of its own
    None,
    /// An address of its own, on the daemon's bridge
    Veth,
    /// That of the machine
    Host,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum RuntimeArg {
    /// handler.py with def handle(event)
    Python,
    /// handler.js with exports.handle = async (event) => ...
    Node,
}

#[derive(Debug, Args)]
pub(crate) struct HandlerArgs {
    /// What it is called
    pub(crate) name: String,
    /// The base
    #[arg(long)]
    pub(crate) base: String,
    /// The directory with handler.py or handler.js
    #[arg(long, value_name = "DIR")]
    pub(crate) code: PathBuf,
    /// What it is written for
    #[arg(long, value_enum, default_value = "python")]
    pub(crate) runtime: RuntimeArg,
    /// The interpreter, by its path in the base
    #[arg(long, value_name = "PATH")]
    pub(crate) interpreter: Option<String>,
    /// What it needs, as it was given to `sandbox package add`
    #[arg(long, value_name = "REQUIREMENT")]
    pub(crate) require: Vec<String>,
    /// Its network
    #[arg(long, value_enum, value_name = "KIND", default_value = "none")]
    pub(crate) network: NetworkArg,
    /// The most memory of each sandbox
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    pub(crate) memory: u64,
    /// The most sandboxes at a time
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub(crate) instances: u32,
    /// The most requests that wait; more are refused
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    pub(crate) queue: u32,
    /// How long a request may take
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u64,
    /// A variable of its environment
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PackageCommand {
    /// Install packages and all that they need: by pip, in sandboxes, from wheels
    Add {
        /// The base that they are for
        #[arg(long)]
        base: String,
        /// The interpreter, by its path in the base
        #[arg(long, value_name = "PATH", default_value = "/usr/bin/python3")]
        interpreter: String,
        /// Take them from this index, with the machine's network
        #[arg(long, value_name = "URL", default_value = "https://pypi.org/simple")]
        index: String,
        /// Take them from this directory of wheels, without a network
        #[arg(long, value_name = "DIR", conflicts_with = "index")]
        from: Option<PathBuf>,
        /// Build this source distribution first; its code runs, in a sandbox
        #[arg(long, value_name = "NAME==VERSION")]
        build: Vec<String>,
        /// A directory with the package pip, for a base without it
        #[arg(long, value_name = "DIR")]
        pip: Option<PathBuf>,
        /// What is needed, such as "django>=4"
        #[arg(required = true, value_name = "REQUIREMENT")]
        requirements: Vec<String>,
    },
    /// List packages
    #[command(visible_alias = "ls")]
    List,
    /// Remove a package, and end the Zygotes that have imported it
    #[command(visible_alias = "rm")]
    Remove {
        /// The base that it is for
        #[arg(long)]
        base: String,
        /// The package
        #[arg(value_name = "NAME==VERSION")]
        package: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ZygoteCommand {
    /// Start an interpreter that imports, and waits
    Add {
        /// The base
        #[arg(long)]
        base: String,
        #[command(flatten)]
        python: PythonArgs,
        /// A module of the base that it imports
        #[arg(long, value_name = "MODULE")]
        module: Vec<String>,
        /// The most memory that it may have
        #[arg(long, value_name = "MIB", default_value_t = 512)]
        memory: u64,
    },
    /// List Zygotes
    Ls,
}

#[derive(Debug, Args)]
pub(crate) struct PythonArgs {
    /// The interpreter, by its path in the base
    #[arg(long, value_name = "PATH", default_value = "/usr/bin/python3")]
    pub(crate) interpreter: String,
    /// A package that is imported or may be: a directory of the store
    #[arg(long, value_name = "NAME==VERSION")]
    pub(crate) package: Vec<String>,
    /// A directory of packages in the place of the daemon's
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The base
    #[arg(long)]
    pub(crate) base: String,
    /// Run Python: the program is a script, or -c and a text, and may be forked from a Zygote
    #[arg(long)]
    pub(crate) python: bool,
    #[command(flatten)]
    pub(crate) packages: PythonArgs,
    /// What it needs, as it was given to `sandbox package add`: it gets all packages that this took
    #[arg(
        long,
        value_name = "REQUIREMENT",
        requires = "python",
        conflicts_with = "store"
    )]
    pub(crate) require: Vec<String>,
    /// A directory that it reads at /code
    #[arg(long, value_name = "DIR")]
    pub(crate) code: Option<PathBuf>,
    /// A directory that it may write to at /scratch
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,
    /// Its network
    #[arg(long, value_enum, value_name = "KIND", default_value = "none")]
    pub(crate) network: NetworkArg,
    /// The most memory, /tmp included
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    pub(crate) memory: u64,
    /// The most processes and threads
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) processes: u32,
    /// The most CPU time, in thousandths of a processor
    #[arg(long, value_name = "MILLIS")]
    pub(crate) cpu: Option<u32>,
    /// Kill it after this time
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// A variable of its environment
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<String>,
    /// Print its id, and do not wait for its end
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The id of the sandbox
    pub(crate) id: String,
    /// Kill the program after this time, at most a minute
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) timeout: u64,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<String>,
}
