//! `cargo xtask gen-proto`: generates Rust code and the descriptor set from the `.proto` files,
//! without a `protoc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use integration::workspace_dir;
use prost::Message as _;

use crate::shell::say;

/// The files of the contract, below `proto/proto`.
const CONTRACT: &[&str] = &["xrayd/v1/xrayd.proto"];
const DESCRIPTORS: &str = "xrayd.v1.bin";
/// Messages that are documented as JSON with these very names of fields (docs/xrayctl.md).
const JSON: &[&str] = &[
    "AttachReport",
    "Capture",
    "ClockFault",
    "DetachReport",
    "DutyCycle",
    "Budget",
    "BudgetStatus",
    "GroupStatus",
    "FunctionInfo",
    "Gap",
    "Kinship",
    "ModuleCopies",
    "ModuleStatus",
    "NotFollowed",
    "ProcessStatus",
    "Filter",
    "Refusal",
    "RefusedModule",
    "SuppressedFunction",
    "SkippedSleds",
    "ThreadLoss",
    "ToggleReport",
];

/// Fields of these messages that are enumerations, and the functions that serialise them as names.
const NAMES: &[(&str, &str)] = &[
    ("ClockFault.kind", "clock_fault_kind"),
    ("Gap.cause", "gap_cause"),
    ("GroupStatus.detection", "detection"),
    ("GroupStatus.follow", "follow"),
    ("ProcessStatus.detection", "detection"),
    ("ProcessStatus.mode", "mode"),
    ("ProcessStatus.state", "session_state"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when the committed files are not what would be written
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let proto = workspace_dir().join("proto");
    let generated = proto.join("src/generated");
    let wanted = generate(&proto.join("proto"))?;
    if arguments.check {
        return check(&generated, &wanted);
    }
    fs::create_dir_all(&generated)
        .with_context(|| format!("cannot create {}", generated.display()))?;
    for (name, content) in &wanted {
        let path = generated.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        say(&format!("wrote {}", path.display()))?;
    }
    Ok(())
}

/// Every generated file by its name.
fn generate(include: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let descriptors =
        protox::compile(CONTRACT, [include]).context("the contract does not compile")?;
    let out = tempfile::tempdir().context("cannot create a temporary directory")?;
    let mut files = BTreeMap::new();
    let mut reflected = descriptors.clone();
    // Comments become documentation in the code. Reflection has no use for them.
    for file in &mut reflected.file {
        file.source_code_info = None;
    }
    files.insert(DESCRIPTORS.to_owned(), reflected.encode_to_vec());
    let configured = JSON
        .iter()
        .fold(tonic_prost_build::configure(), |builder, message| {
            builder.type_attribute(format!("xrayd.v1.{message}"), "#[derive(serde::Serialize)]")
        });
    let configured = NAMES.iter().fold(configured, |builder, (field, function)| {
        let attribute = format!("#[serde(serialize_with = \"crate::names::{function}\")]");
        builder.field_attribute(format!("xrayd.v1.{field}"), attribute)
    });
    configured
        .out_dir(out.path())
        .compile_fds(descriptors)
        .context("cannot generate code from the contract")?;
    for entry in fs::read_dir(out.path()).context("cannot list the generated files")? {
        let path = entry.context("cannot list the generated files")?.path();
        let name = path
            .file_name()
            .context("a file without a name")?
            .to_string_lossy()
            .into_owned();
        files.insert(
            name,
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?,
        );
    }
    Ok(files)
}

fn check(generated: &Path, wanted: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    let mut stale = Vec::new();
    for (name, content) in wanted {
        // A file that cannot be read is as wrong as a file with other content.
        if fs::read(generated.join(name)).ok().as_ref() != Some(content) {
            stale.push(name.as_str());
        }
    }
    if !stale.is_empty() {
        bail!(
            "not current: {}; run `cargo xtask gen-proto`",
            stale.join(", ")
        );
    }
    say("the generated code is current")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_code_is_current() {
        run(&Arguments { check: true }).unwrap();
    }
}
