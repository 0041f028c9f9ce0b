"""diffusers' FluxPipeline with a small transformer, compiled: four images of eight steps of denoising."""

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

torch.manual_seed(0)
transformer = FluxTransformer2DModel(
    patch_size=1, in_channels=16, num_layers=2, num_single_layers=4, attention_head_dim=32, num_attention_heads=4,
    joint_attention_dim=64, pooled_projection_dim=64, axes_dims_rope=[8, 12, 12]).eval()
vae = AutoencoderKL(
    in_channels=3, out_channels=3, down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
    block_out_channels=(16,), latent_channels=4, norm_num_groups=4, use_quant_conv=False, use_post_quant_conv=False,
    shift_factor=0.06, scaling_factor=1.5).eval()
pipe = FluxPipeline(
    scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae, text_encoder=None, tokenizer=None, text_encoder_2=None,
    tokenizer_2=None, transformer=transformer)
pipe.set_progress_bar_config(disable=True)
pipe.transformer = torch.compile(pipe.transformer, fullgraph=True)


def told(pipe, step, timestep, given):
    print(f"step {step} latents {given['latents'].square().mean().item():.6f}", flush=True)
    return given


for image in range(4):
    pipe(
        prompt_embeds=torch.randn(1, 32, 64), pooled_prompt_embeds=torch.randn(1, 64), height=64, width=64,
        num_inference_steps=8, guidance_scale=0.0, generator=torch.Generator().manual_seed(image), output_type="pt",
        callback_on_step_end=told)
