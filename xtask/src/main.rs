//! `cargo xtask`: the tasks of the project that cargo alone cannot do.

mod bench;
mod bless;
mod columns;
mod deb;
mod demo;
mod dependencies;
mod failed_tests;
mod fuzz;
mod gen_proto;
mod lint;
mod package;
mod shell;
mod soak;
mod tarball;
mod test;
mod upstream;

use std::io;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The project's own chores")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Traces a running example program from outside and shows what it does
    Demo(demo::Arguments),
    /// Installs what the tests need where it is missing, builds everything and runs all tests
    Test(test::Arguments),
    /// Writes the generated code of the gRPC contract
    GenProto(gen_proto::Arguments),
    /// Runs all tests and takes what they print for the truth from now on
    Bless(bless::Arguments),
    /// Measures everything and prints one table
    Bench(bench::Arguments),
    /// Feeds the readers of foreign data with what libFuzzer thinks up
    Fuzz(fuzz::Arguments),
    /// Runs the long versions of the tests
    Soak(soak::Arguments),
    /// Runs LLVM's own tests of llvm-xray, from a checkout of LLVM, with xrayctl in its place
    Upstream(upstream::Arguments),
    /// Builds the Debian package; with --test, tries it in a clean Debian
    Deb(deb::Arguments),
    /// Packs statically linked programs; with --test, tries them in an empty root
    Tarball(tarball::Arguments),
    /// Checks that imports keep to the order of the folders and go in no circles, and that text
    /// keeps to 100 columns
    Lint,
    /// Checks licences, duplicates and sources of all dependencies by deny.toml
    Dependencies,
}

fn main() -> Result<()> {
    match run(Arguments::parse().command) {
        // The reader has ended: `cargo xtask demo | head`.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        result => result,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::GenProto(arguments) => gen_proto::run(&arguments),
        Command::Bless(arguments) => bless::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Upstream(arguments) => upstream::run(&arguments),
        Command::Deb(arguments) => deb::run(&arguments),
        Command::Tarball(arguments) => tarball::run(&arguments),
        Command::Lint => lint::run(),
        Command::Dependencies => dependencies::run(),
    }
}
