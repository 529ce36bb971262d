//! `nicfetch`: see [`cli::nicfetch`].

fn main() -> std::process::ExitCode {
    cli::nicfetch::main()
}
