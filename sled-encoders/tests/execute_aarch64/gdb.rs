//! The part of the debugger's remote protocol that drives a process in the emulator.

use std::{
    io::{BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// An emulated process that stands still until a command lets it go.
#[derive(Debug)]
pub(crate) struct Gdb {
    process: Child,
    /// Buffered, since an answer has hundreds of bytes and each is read by itself.
    stream: BufReader<UnixStream>,
}

/// x0 to x30, sp, pc and the flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Registers {
    pub(crate) x: [u64; 31],
    pub(crate) sp: u64,
    pub(crate) pc: u64,
    pub(crate) cpsr: u32,
}

// === impl Gdb ===

impl Gdb {
    /// Starts `program`, which stops before its first instruction; `folder` is for the socket.
    pub(crate) fn start(program: &Path, folder: &Path) -> Self {
        const TOOL: &str = "qemu-aarch64";
        let socket = folder.join("gdb");
        let process = Command::new(TOOL)
            .arg("-g")
            .arg(&socket)
            .arg(program)
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{TOOL}: {error}; it is in the Debian package qemu-user: apt-get install qemu-user")
            });
        let deadline = Instant::now() + Duration::from_secs(60);
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "{TOOL} does not listen: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        let stream = BufReader::new(stream);
        let mut gdb = Self { process, stream };
        gdb.ask("?");
        gdb
    }

    /// Executes one instruction.
    pub(crate) fn step(&mut self) {
        let stopped = self.ask("s");
        assert!(stopped.starts_with('T'), "a step: {stopped}");
    }

    /// Runs up to a breakpoint.
    pub(crate) fn go(&mut self) {
        let stopped = self.ask("c");
        assert!(stopped.starts_with("T05"), "no breakpoint: {stopped}");
    }

    /// Returns true if the process has reached a breakpoint after `c` was sent. It may be sent `c`
    /// again then.
    pub(crate) fn has_stopped(&mut self) -> bool {
        self.stream.get_ref().set_nonblocking(true).unwrap();
        let mut byte = [0];
        // The acknowledgement of the command comes at once, and says nothing about the process.
        let read = self.stream.read(&mut byte);
        self.stream.get_ref().set_nonblocking(false).unwrap();
        let something = match read {
            Ok(_) => byte[0] != b'+',
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                false
            }
        };
        if something {
            assert_eq!(byte[0], b'$', "a packet begins");
            let stopped = self.receive_rest();
            assert!(stopped.starts_with("T05"), "no breakpoint: {stopped}");
        }
        something
    }

    /// Sends a command whose answer must be read.
    pub(crate) fn send(&mut self, command: &str) {
        let sum = command.bytes().fold(0u8, u8::wrapping_add);
        let packet = format!("${command}#{sum:02x}");
        self.stream.get_mut().write_all(packet.as_bytes()).unwrap();
    }

    pub(crate) fn break_at(&mut self, address: u64) {
        assert_eq!(self.ask(&format!("Z0,{address:x},4")), "OK");
    }

    /// Runs up to `address`, or to a breakpoint before it.
    pub(crate) fn go_to(&mut self, address: u64) {
        self.break_at(address);
        self.go();
        assert_eq!(self.ask(&format!("z0,{address:x},4")), "OK");
    }

    pub(crate) fn registers(&mut self) -> Registers {
        let text = self.ask("g");
        let pair = |i: usize| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(pair).collect();
        let word = |i: usize| u64::from_le_bytes(*bytes[8 * i..].first_chunk().unwrap());
        Registers {
            x: std::array::from_fn(word),
            sp: word(31),
            pc: word(32),
            cpsr: u32::from_le_bytes(*bytes[264..].first_chunk().unwrap()),
        }
    }

    pub(crate) fn set_registers(&mut self, registers: &Registers) {
        let Registers { x, sp, pc, cpsr } = registers;
        let general = x.iter().chain([sp, pc]).flat_map(|x| x.to_le_bytes());
        let bytes = general.chain(cpsr.to_le_bytes());
        let text: String = bytes.map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.ask(&format!("G{text}")), "OK");
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.receive()
    }

    /// Receives the next packet and acknowledges it.
    fn receive(&mut self) -> String {
        while self.byte() != b'$' {}
        self.receive_rest()
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Receives the rest of a packet behind its first character, and two digits of a sum that a
    /// local socket does not need.
    fn receive_rest(&mut self) -> String {
        let mut text = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                other => text.push(other),
            }
        }
        for _ in 0..2 {
            self.byte();
        }
        self.stream.get_mut().write_all(b"+").unwrap();
        String::from_utf8(text).unwrap()
    }
}

impl Drop for Gdb {
    fn drop(&mut self) {
        // The process ends with the test. If it had ended before, the last command has failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
