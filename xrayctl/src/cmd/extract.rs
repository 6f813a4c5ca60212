//! `xrayctl extract`: the instrumentation map of a file, of all files that a process has mapped, or
//! of a trace, in the YAML of `llvm-xray extract` or in JSON.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use xray_trace::container::MAGIC;
use xray_trace::instr_map::{FunctionNames, InstrMap, Object, ObjectError};
use xray_trace::model::{BuildId, Trace};
use xrayd::target::mapped_files;
use xrayd::{Pid, Reason, Refusal};

use crate::args::Format;
use crate::failure::{self, Failure};
use crate::input;
use crate::output::instr_map::{Contents, FileMap, ModuleMap, ProcessMaps};
use crate::output::{Console, text};
use crate::process::{self, ProcessName};
use crate::trace_file::Overwrite;
use crate::whole_file::WholeFile;

const EXAMPLES: &str = "\
Examples:
  xrayctl extract --symbolize server
  xrayctl extract server.o -o map.yaml
  xrayctl extract --pid 1234 --json
  xrayctl extract --symbolize run.xtrace -o map.yaml
  xrayctl account -m map.yaml run.fdr

A trace has no places of sleds: each of its functions gets a line with its address, and with the id
that exports of the trace have.

Prints for a sled:
  - { id: 1, address: 0x1278, function: 0x1278, kind: function-enter, always-instrument: true, function-name: main, version: 2 }";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A program, library or object file for any processor that LLVM makes sleds for, a map in
    /// YAML, or a trace; - is standard input. The number of a running process stands for --pid,
    /// unless a file has that name
    #[arg(required_unless_present = "pid")]
    file: Option<PathBuf>,
    /// Read the program and all libraries that this process has mapped, even from deleted files
    #[arg(short, long, value_name = "PROCESS", conflicts_with = "file", value_parser = process::parse)]
    pid: Option<ProcessName>,
    /// The file to write; - is standard output
    #[arg(short, long, value_name = "OUT", default_value = "-")]
    output: PathBuf,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Print the names of functions
    #[arg(short, long)]
    symbolize: bool,
    /// Print demangled names (the default)
    #[arg(long, overrides_with = "no_demangle")]
    demangle: bool,
    /// Print the linker's symbols instead of demangled names
    #[arg(long, overrides_with = "demangle")]
    no_demangle: bool,
    #[command(flatten)]
    format: Format,
}

/// The input.
enum Input<'a> {
    File(&'a Path),
    Process(u32),
}

/// The output.
enum Extracted {
    Yaml(InstrMap),
    /// JSON, of a file by its name or of a process by its pid.
    File(String, InstrMap),
    Process(u32, Vec<Module>),
}

/// A module of a process that has a map.
struct Module {
    /// Its number. 0 is the main program, with or without sleds.
    object: u32,
    file: String,
    build_id: Option<BuildId>,
    load_bias: Option<u64>,
    map: InstrMap,
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let output = (args.output != Path::new("-")).then(|| {
        let inputs = args.file.as_deref();
        input::refuse_inputs(&args.output, inputs.as_slice())?;
        let overwrite = if args.force {
            Overwrite::Yes
        } else {
            Overwrite::No
        };
        WholeFile::open(&args.output, overwrite)
    });
    let output = output.transpose()?;
    let extracted = args.extract(console)?;
    let write = |out: &mut dyn Write| extracted.write(args.names(), out);
    match output {
        None => console.show(|out, _| write(out)),
        Some(output) => {
            let ((), _) = output.write_with(write)?;
            Ok(())
        }
    }
}

/// The map of a file. Notes the functions of a trace that have no id.
fn map_of(path: &Path, console: &Console) -> anyhow::Result<InstrMap> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = input::open_input(path).with_context(cannot)?;
    if is_trace(&mut file).with_context(cannot)? {
        let trace = Trace::open(file).with_context(cannot)?;
        let (map, left_out) = InstrMap::of_trace(&trace);
        tell_left_out(left_out, console);
        return Ok(map);
    }
    let bytes = read(&mut file).with_context(cannot)?;
    InstrMap::read(&bytes).with_context(cannot)
}

fn is_trace(file: &mut File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut begin = Vec::new();
    file.take(MAGIC.len() as u64).read_to_end(&mut begin)?;
    file.rewind()?;
    Ok(begin == MAGIC)
}

/// The modules of a process that have a map. A file that cannot be read is noted, and the others
/// are printed.
fn modules_of(pid: u32, console: &Console) -> anyhow::Result<Vec<Module>> {
    let files = mapped_files(Pid::try_from(pid)?).map_err(failure::from_refusal)?;
    let mut modules = Vec::new();
    // The main program keeps its number even without sleds.
    let mut libraries = 1;
    for file in files {
        let object = match file.open().and_then(parse_mapped) {
            Ok(Ok(object)) => object,
            Ok(Err(ObjectError::NotElf | ObjectError::NoMap | ObjectError::NoSectionHeaders)) => {
                continue;
            }
            Ok(Err(error)) => {
                console.note(&format!("{}: {error}", text::printable(&file.path)));
                continue;
            }
            Err(error) => {
                let path = text::printable(&file.path);
                console.note(&format!("{path}: cannot be read: {error}"));
                continue;
            }
        };
        let number = if file.is_main {
            0
        } else {
            libraries += 1;
            libraries - 1
        };
        modules.push(Module {
            object: number,
            build_id: object.build_id().cloned(),
            load_bias: file.load_bias(&object),
            map: object.into(),
            file: file.path,
        });
    }
    if modules.is_empty() {
        let what = format!("process {pid} has mapped no file with an instrumentation map");
        let refusal = Refusal::new(Reason::NoSleds, what);
        return Err(failure::from_refusal(refusal));
    }
    Ok(modules)
}

/// Parses a mapped file. Programs also map data files executable, which may be long, so only ELF
/// files are read to their end.
fn parse_mapped(mut file: File) -> io::Result<Result<Object, ObjectError>> {
    let mut magic = [0; 4];
    if !file.metadata()?.is_file() || file.read_exact(&mut magic).is_err() || magic != *b"\x7fELF" {
        return Ok(Err(ObjectError::NotElf));
    }
    file.rewind()?;
    Ok(Object::parse_any(&read(&mut file)?))
}

/// The maps of a process as one map. Notes which ids belong to which module.
fn one_of(modules: Vec<Module>, console: &Console) -> InstrMap {
    for module in &modules {
        tell_oddities(&module.file, &module.map, console);
    }
    let is_program = |module: &Module| module.object == 0;
    if !modules.iter().all(is_program) {
        for Module { object, file, .. } in &modules {
            let file = text::printable(file);
            console.note(&format!(
                "object {object}, ids from {}: {file}",
                (object << 24) + 1
            ));
        }
    }
    let maps = modules
        .into_iter()
        .map(|module| (module.object, module.map));
    let (all, left_out) = InstrMap::of_process(maps);
    tell_left_out(left_out, console);
    all
}

/// Notes functions without an id.
fn tell_left_out(functions: usize, console: &Console) {
    if functions > 0 {
        console.note(&format!(
            "{functions} functions are left out, whose ids do not fit 32 bits (more than 256 objects, or 2^24 functions in one)"
        ));
    }
}

/// Notes the warnings of a map. In JSON they are beside the map.
fn tell_oddities(file: &str, map: &InstrMap, console: &Console) {
    for warning in map.warnings() {
        console.note(&format!("{}: {warning}", text::printable(file)));
    }
}

/// All bytes of a file. Only a regular file has a reliable end.
fn read(file: &mut File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

// === impl Args ===

impl Args {
    fn names(&self) -> FunctionNames {
        match (self.symbolize, self.no_demangle) {
            (false, _) => FunctionNames::None,
            (true, true) => FunctionNames::Symbols,
            (true, false) => FunctionNames::Demangled,
        }
    }

    fn extract(&self, console: &Console) -> anyhow::Result<Extracted> {
        let file = match self.input()? {
            Input::File(file) => file,
            Input::Process(pid) => return self.process(pid, console),
        };
        let map = map_of(file, console)?;
        let file = file.display().to_string();
        if self.format.json {
            return Ok(Extracted::File(file, map));
        }
        tell_oddities(&file, &map, console);
        Ok(Extracted::Yaml(map))
    }

    /// The file or the process to read.
    fn input(&self) -> anyhow::Result<Input<'_>> {
        let nothing = || Failure::Usage("no file and no process is named".to_owned());
        if let Some(pid) = &self.pid {
            return Ok(Input::Process(pid.find()?));
        }
        let file = self.file.as_deref().ok_or_else(nothing)?;
        Ok(match file.to_str().and_then(process::running) {
            Some(pid) => Input::Process(pid),
            None => Input::File(file),
        })
    }

    fn process(&self, pid: u32, console: &Console) -> anyhow::Result<Extracted> {
        let modules = modules_of(pid, console)?;
        Ok(match self.format.json {
            true => Extracted::Process(pid, modules),
            false => Extracted::Yaml(one_of(modules, console)),
        })
    }
}

// === impl Extracted ===

impl Extracted {
    fn write(&self, names: FunctionNames, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Yaml(map) => return map.write_yaml(names, out),
            Self::File(file, map) => {
                serde_json::to_writer_pretty(&mut *out, &FileMap::new(file, map))?;
            }
            Self::Process(pid, modules) => {
                let modules = modules.iter().map(Module::in_json).collect();
                serde_json::to_writer_pretty(&mut *out, &ProcessMaps::new(*pid, modules))?;
            }
        }
        writeln!(out)
    }
}

// === impl Module ===

impl Module {
    fn in_json(&self) -> ModuleMap<'_> {
        ModuleMap {
            object: self.object,
            file: &self.file,
            build_id: self.build_id.as_ref().map(ToString::to_string),
            load_bias: self.load_bias,
            map: Contents::of(&self.map),
        }
    }
}
