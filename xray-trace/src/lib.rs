//! XRay instrumentation maps, the trace model, the `.xtrace` format, foreign formats, and analyses.
//! The library takes bytes and files; it does not trace processes.

pub mod analysis;
pub mod container;
pub mod instr_map;
pub mod llvm;
pub mod model;
pub mod sink;
#[cfg(feature = "import")]
pub mod source;

mod addr;
mod function_map;
mod yaml_scalar;

pub use addr::FileAddr;
