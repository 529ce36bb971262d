//! `yolofs`: see [`cli::yolofs`].

fn main() -> std::process::ExitCode {
    cli::yolofs::main()
}
