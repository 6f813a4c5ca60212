//! `cargo xtask bench`: all figures on speed and size, in one table. Nothing is asserted, since
//! figures depend on the machine.
//!
//! | file | content |
//! |---|---|
//! | `leaf`, `toggle`, `loads`, `attach`, `large`, `processes`, `drain`, `redis`, `snapshot`, `offline` | a section of the table each |
//! | `daemon` | the release build's daemon and command line, for sections with a running program |
//! | `measured` | the cost of a command that runs to its end |
//! | `table`, `samples`, `machine`, `switches` | common parts |
//!
//! This program itself may be a debug build: everything that is measured runs in other processes.

mod attach;
mod daemon;
mod drain;
mod large;
mod leaf;
mod loads;
mod machine;
mod measured;
mod offline;
mod processes;
mod redis;
mod samples;
mod snapshot;
mod switches;
mod table;
mod toggle;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use integration::target_dir;

use self::machine::Machine;
use self::table::{Markdown, Row, Table, Text};
use crate::shell::{cargo, execute, say};
use crate::test::{OnMissing, install_missing};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Measure these alone
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    only: Vec<Section>,
    /// Leave these out
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    skip: Vec<Section>,
    /// Fewer and shorter repetitions: for trying it out, not for figures
    #[arg(long)]
    quick: bool,
    /// Write the table into this file as well, with what it was taken on
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// One call of a small function, traced by us and by others
    Leaf,
    /// 20,000 functions on and off
    Toggle,
    /// From dlopen to the first event of a library
    Loads,
    /// Attaching to few and many threads
    Attach,
    /// A program of 200,000 functions
    Large,
    /// Many quiet processes: what the daemon takes for them
    Processes,
    /// The highest rate without losses, and what it costs
    Drain,
    /// Redis under load
    Redis,
    /// A picture of full rings, while threads go on
    Snapshot,
    /// The commands that work on files, beside llvm-xray
    Offline,
}

/// The time that figures are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    Full,
    Quick,
}

/// The settings of every section.
#[derive(Debug)]
struct Bench {
    effort: Effort,
    /// `target/bench`.
    dir: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    install_missing(OnMissing::Install)?;
    // One build of the programs that users run; its figures count.
    execute(cargo("build").args(["--release", "--package", "xrayd", "--package", "xrayctl"]))?;
    let effort = if arguments.quick {
        Effort::Quick
    } else {
        Effort::Full
    };
    let bench = Bench {
        effort,
        dir: target_dir()?.join("bench"),
    };
    let machine = Machine::this();
    let mut table = Table::default();
    for &section in Section::value_variants() {
        let wanted = arguments.only.is_empty() || arguments.only.contains(&section);
        if !wanted || arguments.skip.contains(&section) {
            continue;
        }
        say(&format!("measuring: {}", section.title()))?;
        let rows = section.run(&bench, &mut table);
        // A section that fails leaves a row with the reason, and the others are measured all the
        // same.
        let rows = rows
            .unwrap_or_else(|error| vec![Row::not_measured(section.title(), format!("{error:#}"))]);
        table.section(section.title(), rows);
    }
    bench.clean()?;
    say(&format!("\n{machine}\n{}", Text(&table)))?;
    if let Some(path) = &arguments.markdown {
        fs::write(path, page(&machine, &table))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    say(&format!("{} of the targets were missed", table.missed()))?;
    match table.not_measured() {
        0 => Ok(()),
        rows => bail!("{rows} rows could not be measured; they say why"),
    }
}

/// The page `docs/benchmarks.md`.
fn page(machine: &Machine, table: &Table) -> String {
    let words: Vec<_> = std::env::args().skip(1).collect();
    format!(
        "# Benchmarks\n\nAll rows of one run of `cargo xtask {}`, on\n\n{machine}\n\
         Ratios carry over to other machines, absolute times do not. Times are medians of interleaved rounds unless they say \
         otherwise. Nothing here is asserted by a test.\n\n{}",
        words.join(" "),
        Markdown(table)
    )
}

// === impl Section ===

impl Section {
    fn title(self) -> &'static str {
        match self {
            Section::Leaf => "Leaf function, entry and exit, per call",
            Section::Toggle => "20,000 functions on and off",
            Section::Loads => "A library of 1,000 functions that is loaded under rules",
            Section::Attach => "Attach: the time that a thread stands still",
            Section::Large => "A program of 200,000 functions",
            Section::Processes => "Many quiet processes",
            Section::Drain => "Lossless drain",
            Section::Redis => "Redis, every function",
            Section::Snapshot => "Snapshot of full rings",
            Section::Offline => "Offline, beside llvm-xray-19",
        }
    }

    fn run(self, bench: &Bench, table: &mut Table) -> Result<Vec<Row>> {
        match self {
            Section::Leaf => leaf::run(bench, table),
            Section::Toggle => toggle::run(bench),
            Section::Loads => loads::run(bench),
            Section::Attach => attach::run(bench),
            Section::Large => large::run(bench),
            Section::Processes => processes::run(bench),
            Section::Drain => drain::run(bench, table),
            Section::Redis => redis::run(bench, table),
            Section::Snapshot => snapshot::run(bench, table),
            Section::Offline => offline::run(bench, table),
        }
    }
}

// === impl Bench ===

impl Bench {
    /// An empty directory, for as long as the run lasts. It is on the disk, as traces are.
    fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join("scratch").join(name);
        remove(&dir)?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    }

    fn clean(&self) -> Result<()> {
        remove(&self.dir.join("scratch"))
    }
}

fn remove(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    Ok(())
}
