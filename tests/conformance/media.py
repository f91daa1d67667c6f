"""Tools that answer with images, sound and embedded resources, and the prompt with an image.

The picture and the sound are made here and are valid files: one red pixel, and a
tenth of a second of silence.
"""

import io
import struct
import wave
import zlib

from roundgate import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    PromptMessage,
    TextContent,
    TextResourceContents,
    prompt,
    tool,
)


def png_of_one_pixel(red: int, green: int, blue: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(
        ">IIBBBBB", 1, 1, 8, 2, 0, 0, 0
    )  # 1 x 1 pixels, 8 bits a channel, colour type 2: RGB
    row = bytes([0, red, green, blue])  # a row opens with its filter type: 0, none
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(row))
        + chunk(b"IEND", b"")
    )


def wav_of_silence(duration_ms: int, frames_per_s: int = 8000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(frames_per_s)
        wav.writeframes(bytes(2 * frames_per_s * duration_ms // 1000))
    return buffer.getvalue()


RED_PIXEL = ImageContent(data=png_of_one_pixel(255, 0, 0), mime_type="image/png")
SILENCE = AudioContent(data=wav_of_silence(100), mime_type="audio/wav")


@tool
async def test_image_content() -> ImageContent:
    """Answers with an image."""
    return RED_PIXEL


@tool
async def test_audio_content() -> AudioContent:
    """Answers with a sound."""
    return SILENCE


@tool
async def test_embedded_resource() -> EmbeddedResource:
    """Answers with a resource inside the result."""
    return EmbeddedResource(
        resource=TextResourceContents(
            uri="test://embedded-resource",
            text="This is an embedded resource content.",
            mime_type="text/plain",
        )
    )


@tool
async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Answers with text, an image and a resource at once."""
    return [
        TextContent("Multiple content types test:"),
        RED_PIXEL,
        EmbeddedResource(
            resource=TextResourceContents(
                uri="test://mixed-content-resource",
                text='{"test": "data", "value": 123}',
                mime_type="application/json",
            )
        ),
    ]


@prompt
async def test_prompt_with_image() -> list[PromptMessage]:
    """Shows an image and asks about it."""
    return [
        PromptMessage("user", RED_PIXEL),
        PromptMessage("user", "Please analyze the image above."),
    ]
