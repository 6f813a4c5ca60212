//! `xrayctl extract`: the instrumentation map of a file, as `llvm-xray extract` prints it, or as JSON.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use xray_trace::instr_map::{FunctionNames, InstrMap, MapFunction, Sled};

use crate::args::Format;
use crate::output::{Console, text};
use crate::parse;
use crate::trace_file::{OutputFile, Overwrite};

const EXAMPLES: &str = "\
Examples:
  xrayctl extract --symbolize server
  xrayctl extract server.o -o map.yaml
  xrayctl extract --pid 1234 --json

Prints for a sled:
  - { id: 1, address: 0x1278, function: 0x1278, kind: function-enter, always-instrument: true, function-name: main, version: 2 }";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A program, a library, a file still to be linked, for any processor that LLVM makes sleds for; or a map in YAML
    #[arg(required_unless_present = "pid")]
    file: Option<PathBuf>,
    /// The program that this process runs, also if its file is gone
    #[arg(long, conflicts_with = "file", value_parser = parse::pid)]
    pid: Option<u32>,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "OUT", default_value = "-")]
    output: PathBuf,
    /// Replace OUT if it is there already
    #[arg(long)]
    force: bool,
    /// Print the names of functions
    #[arg(short, long)]
    symbolize: bool,
    /// Print names to be read (the default)
    #[arg(long, overrides_with = "no_demangle")]
    demangle: bool,
    /// Print names as the linker knows them
    #[arg(long, overrides_with = "demangle")]
    no_demangle: bool,
    #[command(flatten)]
    format: Format,
}

/// A map in JSON.
#[derive(Serialize)]
struct Extracted<'a> {
    file: String,
    machine: Option<String>,
    functions: Vec<Function<'a>>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Function<'a> {
    id: u32,
    name: &'a str,
    symbol: Option<&'a str>,
    section: u32,
    address: u64,
    size: u64,
    sleds: Vec<Place>,
}

#[derive(Serialize)]
struct Place {
    address: u64,
    kind: String,
    always_instrument: bool,
    version: u8,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let file = args.input();
    let output = (args.output != Path::new("-")).then(|| {
        let overwrite = if args.force {
            Overwrite::Yes
        } else {
            Overwrite::No
        };
        OutputFile::open(&args.output, overwrite)
    });
    let output = output.transpose()?;
    let cannot = || format!("cannot read {}", file.display());
    let bytes = read(&file).with_context(cannot)?;
    let map = InstrMap::read(&bytes).with_context(cannot)?;
    drop(bytes);
    if !args.format.json {
        for warning in map.warnings() {
            let file = file.display().to_string();
            console.note(&format!("{}: {warning}", text::printable(&file)));
        }
    }
    match output {
        None => console.show(|out, _| args.write(&file, &map, out)),
        Some(mut output) => {
            output.begin()?;
            output.write_with(|out| args.write(&file, &map, out))
        }
    }
}

/// All of a file. What is no file has no end that could be relied on.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

// === impl Args ===

impl Args {
    fn input(&self) -> PathBuf {
        match (&self.file, self.pid) {
            (Some(file), _) => file.clone(),
            (None, pid) => format!("/proc/{}/exe", pid.unwrap_or_default()).into(),
        }
    }

    fn names(&self) -> FunctionNames {
        match (self.symbolize, self.no_demangle) {
            (false, _) => FunctionNames::None,
            (true, true) => FunctionNames::Symbols,
            (true, false) => FunctionNames::Demangled,
        }
    }

    fn write(&self, file: &Path, map: &InstrMap, out: &mut dyn Write) -> io::Result<()> {
        if self.format.json {
            serde_json::to_writer_pretty(&mut *out, &Extracted::of(file, map))?;
            writeln!(out)
        } else {
            map.write_yaml(self.names(), out)
        }
    }
}

// === impl Extracted ===

impl<'a> Extracted<'a> {
    fn of(file: &Path, map: &'a InstrMap) -> Self {
        // A process's program by its name, where that is still known.
        let file = match file.starts_with("/proc") {
            true => fs::read_link(file).unwrap_or_else(|_| file.to_owned()),
            false => file.to_owned(),
        };
        Self {
            file: file.display().to_string(),
            machine: map.machine().map(|machine| machine.to_string()),
            functions: map
                .functions()
                .iter()
                .map(|function| Function::of(function, map.sleds_of(function)))
                .collect(),
            warnings: map.warnings().iter().map(ToString::to_string).collect(),
        }
    }
}

// === impl Function ===

impl<'a> Function<'a> {
    fn of(function: &'a MapFunction, sleds: &[Sled]) -> Self {
        let MapFunction {
            id,
            section,
            address,
            size,
            symbol,
            name,
            sleds: _,
        } = function;
        Self {
            id: *id,
            name,
            symbol: symbol.as_deref(),
            section: *section,
            address: address.0,
            size: *size,
            sleds: sleds.iter().map(Place::of).collect(),
        }
    }
}

// === impl Place ===

impl Place {
    fn of(sled: &Sled) -> Self {
        let Sled {
            address,
            function: _,
            kind,
            always_instrument,
            version,
        } = sled;
        Self {
            address: address.0,
            kind: kind.to_string(),
            always_instrument: *always_instrument,
            version: *version,
        }
    }
}
