"""What the shipped rules answer for common operators, so that a small file need not compile their patterns. A test
compares the two.
"""

from __future__ import annotations

#: family → names of operators, without ``aten::``; "": no rule matches, the kernel's name decides
_NAMES = {
    "": (
        "_copy_from _has_compatible_shallow_copy_type _nested_tensor_from_tensor_list _pin_memory _reshape_alias "
        "_to_cpu _unsafe_view _upsample_bilinear2d_aa alias broadcast_tensors concat conj conv_transpose2d diff "
        "divide_ expand_as flatten flatten_dense_tensors gather_backward is_floating_point is_nonzero is_pinned "
        "is_same_size isclose item lift_fresh linalg_norm movedim new_empty new_empty_strided new_ones new_zeros "
        "npu_dtype_cast numpy_T pin_memory record_stream resize_ resize_as_ resolve_conj resolve_neg result_type "
        "scalar_tensor set_ sgn squeeze squeeze_ stride t tensor_split tensordot type_as unbind unflatten "
        "unflatten_dense_tensors unsqueeze value_selecting_reduction_backward values"
    ),
    "attention": (
        "_efficient_attention_backward _efficient_attention_forward _flash_attention_backward "
        "_flash_attention_forward _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward scaled_dot_product_attention"
    ),
    "convolution": (
        "_convolution conv2d convolution convolution_backward cudnn_convolution cudnn_convolution_backward "
        "cudnn_convolution_backward_input cudnn_convolution_backward_weight cudnn_convolution_transpose "
        "miopen_convolution mkldnn_convolution"
    ),
    "copy_transpose": (
        "_cat _index_put_impl_ _to_copy as_strided as_strided_ cat chunk clone constant_pad_nd contiguous copy_ "
        "expand gather index index_add index_add_ index_copy index_copy_ index_put index_put_ index_select narrow "
        "pad permute repeat repeat_interleave reshape scatter scatter_ scatter_add scatter_add_ select "
        "select_backward slice slice_backward slice_scatter split split_with_sizes stack to transpose unfold "
        "upsample_bilinear2d upsample_nearest2d view view_as"
    ),
    "elementwise": (
        "__iand__ __ior__ __or__ __xor__ _s_where abs add add_ addcdiv addcdiv_ addcmul addcmul_ arange "
        "binary_cross_entropy_with_logits bitwise_and_ bitwise_not bitwise_or bitwise_or_ bitwise_xor clamp "
        "clamp_ clamp_min clamp_min_ cos detach detach_ div div_ empty empty_like empty_permuted empty_strided eq "
        "exp_ fill_ floor_divide full full_like ge gelu gelu_backward gt hardtanh hardtanh_backward isfinite "
        "isnan l1_loss le leaky_relu leaky_relu_backward lerp_ log log2 log_ log_sigmoid log_sigmoid_forward "
        "logical_and logical_and_ logit logit_backward lt masked_fill_ minimum mse_loss mse_loss_backward mul "
        "mul_ nan_to_num ne neg ones ones_like pow reciprocal relu relu_ remainder rsqrt rsqrt_ rsub sigmoid "
        "sigmoid_backward silu silu_backward sin sqrt square sub sub_ tanh tanh_backward threshold_ "
        "threshold_backward where zero_ zeros zeros_like"
    ),
    "embedding": "embedding embedding_dense_backward",
    "gemm": "_int_mm _scaled_mm _weight_int4pack_mm addmm baddbmm bmm dot einsum linear matmul mm mv",
    "grouped_gemm": "_grouped_mm _scaled_grouped_mm",
    "norm": (
        "_batch_norm_impl_index _fused_rms_norm _fused_rms_norm_backward batch_norm cudnn_batch_norm "
        "cudnn_batch_norm_backward group_norm instance_norm layer_norm miopen_batch_norm "
        "miopen_batch_norm_backward native_batch_norm native_batch_norm_backward native_group_norm "
        "native_group_norm_backward native_layer_norm native_layer_norm_backward rms_norm"
    ),
    "optimizer": (
        "_foreach_add_ _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ _foreach_copy_ _foreach_div_ "
        "_foreach_lerp_ _foreach_mul _foreach_mul_ _foreach_neg _foreach_norm _foreach_sqrt _foreach_zero_ "
        "_fused_adam_ _fused_adamw_ _fused_sgd_"
    ),
    "reduction": (
        "_adaptive_avg_pool2d _local_scalar_dense adaptive_avg_pool2d all any argmax cumsum equal "
        "linalg_vector_norm max max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward mean min prod "
        "sum var"
    ),
    "sampling": (
        "bernoulli_ dropout native_dropout native_dropout_backward normal_ rand randint randn random_ randperm uniform_"
    ),
    "softmax": (
        "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data cross_entropy_loss log_softmax "
        "nll_loss nll_loss_backward nll_loss_forward nll_loss_nd softmax"
    ),
    "sort": "argsort bucketize masked_select nonzero searchsorted sort topk",
}
COMMON = {f"aten::{name}": family for family, names in _NAMES.items() for name in names.split()}
