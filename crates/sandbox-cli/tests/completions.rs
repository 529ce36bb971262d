//! The completions that the program prints.

use std::process::Command;

#[test]
fn each_shell_gets_completions_of_all_commands() {
    let commands = sandbox_cli::command();
    for shell in ["bash", "fish", "zsh"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_sandbox"));
        let output = program.args(["completions", shell]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let script = String::from_utf8(output.stdout).unwrap();
        for command in commands.get_subcommands() {
            let name = command.get_name();
            assert!(script.contains(name), "{shell} knows no {name}");
        }
    }
}
