//! The `heddle` command: everything is in the library.

fn main() -> std::process::ExitCode {
    heddle::cli::main()
}
