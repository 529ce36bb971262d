//! `bootimg`: see [`cli::bootimg`].

fn main() -> std::process::ExitCode {
    cli::bootimg::main()
}
