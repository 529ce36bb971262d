//! The program `sandbox`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    sandbox_cli::main()
}
