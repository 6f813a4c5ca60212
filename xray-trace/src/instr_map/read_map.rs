//! Reads an instrumentation map from an object file or from YAML. The content of the file decides
//! between them.

use super::{InstrMap, Object, ObjectError, YamlError, formats, yaml};

/// Reasons why a file gives no instrumentation map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The file is an object file, but it cannot be read or has no map.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The file is text, but no map in YAML.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// The file is something else.
    #[error("neither an object file (ELF, Mach-O) nor an instrumentation map in YAML")]
    Unknown,
}

// === impl InstrMap ===

impl InstrMap {
    /// Reads an object file (see [`Object::parse_any`]) or a map in YAML.
    ///
    /// # Errors
    ///
    /// If the file has no map, or cannot be read.
    pub fn read(bytes: &[u8]) -> Result<Self, MapError> {
        if formats::is_object(bytes) {
            return Ok(Object::parse_any(bytes)?.into());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| MapError::Unknown)?;
        if text.contains('\0') || text.trim().is_empty() {
            return Err(MapError::Unknown);
        }
        Ok(yaml::read(text)?)
    }
}
